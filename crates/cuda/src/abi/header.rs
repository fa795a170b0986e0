//! Headers: what host and kernels share, as Rust items and as the text of a C++ header.
//!
//! The macro `shared!` takes constants, flags, codes and structs, written once. For the host it defines them;
//! for the kernels it lists them in a [`Header`], whose text NVRTC and the emulator's compiler include. That
//! text ends in `static_assert`s: both compilers check that they lay out each struct as Rust does.
//!
//! The texts are in no file of the repository: `just abi` writes them for readers and editors.

use std::fmt::Write as _;

/// A C++ header that is generated from Rust.
pub(crate) struct Header {
    /// The lines of its first comment.
    pub about: &'static [&'static str],
    /// The name by which device code includes it.
    pub name: &'static str,
    /// The file that it includes.
    pub include: &'static str,
    pub items: &'static [Item],
}

/// What host and kernels share, with the lines of its comments.
pub(crate) enum Item {
    /// Constants, which become macros.
    Constants(&'static [Value]),
    Enum(Enum),
    Struct(Struct),
}

/// Bits or codes.
pub(crate) struct Enum {
    pub about: &'static [&'static str],
    pub name: &'static str,
    /// `bits` or `codes`.
    pub kind: &'static str,
    /// With what the names of its members begin.
    pub prefix: &'static str,
    pub members: &'static [Value],
}

/// A constant or a member of an enum.
pub(crate) struct Value {
    pub about: &'static [&'static str],
    pub name: &'static str,
    pub value: i64,
}

/// A struct, laid out by Rust.
pub(crate) struct Struct {
    pub about: &'static [&'static str],
    pub name: &'static str,
    pub bytes: usize,
    pub alignment: usize,
    pub fields: &'static [Field],
}

/// A field of a struct.
pub(crate) struct Field {
    pub about: &'static [&'static str],
    pub name: &'static str,
    /// Its type, as `shared!` takes it.
    pub shared_type: &'static str,
    pub offset: usize,
}

/// Defines what host and kernels share, and the [`Header`] that the kernels include.
///
/// - `constants { NAME: type = value; }`: constants of the host, and macros of the kernels.
/// - `bits module = Enum "PREFIX_" { NAME = 1 << 0; }`: u32 constants `module::NAME` of the host, and an enum
///   of the kernels with the members `PREFIX_NAME`. Each member is a bit.
/// - `codes module = Enum "PREFIX_" { NAME = 1; }`: likewise, with any values.
/// - `codes = Enum "PREFIX_" { of VALUES }`: an enum of the kernels, with these members.
/// - `struct Name align(16) { field: type; }`: a struct of both. Its types are `u32`, `u64`, `i32`, `f32`,
///   `f64`, an array `[u32; 3]`, a shared struct, or a pointer in parentheses as C++ writes it, which is a
///   u64 on the host: `(const u32*)`.
///
/// Comments go to both sides.
macro_rules! shared {
    (
        $(#[doc = $about:literal])*
        header $header:ident = $file:literal includes $include:literal;
        $(
            $(#[doc = $doc:literal])*
            $kind:ident $($name:ident)? $(align($align:tt))? $(= $enum:ident $prefix:literal)? { $($body:tt)* }
        )+
    ) => {
        $($crate::abi::header::host_item! {
            [$($doc)*] $kind $($name)? $(align($align))? $(= $enum $prefix)? { $($body)* }
        })+

        pub(crate) const $header: $crate::abi::header::Header = $crate::abi::header::Header {
            about: &[$($about),*],
            name: $file,
            include: $include,
            items: &[$($crate::abi::header::device_item! {
                [$($doc)*] $kind $($name)? $(= $enum $prefix)? { $($body)* }
            }),+],
        };
    };
}
pub(crate) use shared;

/// Defines an item of `shared!` for the host.
macro_rules! host_item {
    ([] constants { $($(#[doc = $doc:literal])* $name:ident: $type:ty = $value:expr;)+ }) => {
        $($(#[doc = $doc])* pub(crate) const $name: $type = $value;)+
    };
    ([$($doc:literal)*] struct $name:ident $(align($align:tt))? {
        $($(#[doc = $field_doc:literal])* $field:ident: $type:tt;)+
    }) => {
        $(#[doc = $doc])*
        #[repr(C $(, align($align))?)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub(crate) struct $name {
            $($(#[doc = $field_doc])* pub(crate) $field: $crate::abi::header::host_type!($type),)+
        }
    };
    ([$($doc:literal)*] codes = $enum:ident $prefix:literal { of $values:ident }) => {};
    ([$($doc:literal)*] $kind:ident $module:ident = $enum:ident $prefix:literal {
        $($(#[doc = $member_doc:literal])* $name:ident = $value:expr;)+
    }) => {
        $(#[doc = $doc])*
        pub(crate) mod $module {
            $($(#[doc = $member_doc])* pub const $name: u32 = $value;)+
        }
    };
}
pub(crate) use host_item;

/// The host's type of a field of `shared!`.
macro_rules! host_type {
    (($($pointer:tt)+)) => {
        u64
    };
    ([$type:ident; $length:literal]) => {
        [$type; $length]
    };
    ($type:ident) => {
        $type
    };
}
pub(crate) use host_type;

/// Describes an item of `shared!` to the header.
macro_rules! device_item {
    ([] constants { $($(#[doc = $doc:literal])* $name:ident: $type:ty = $value:expr;)+ }) => {
        $crate::abi::header::Item::Constants(&[$($crate::abi::header::Value {
            about: &[$($doc),*],
            name: stringify!($name),
            value: $name as i64,
        }),+])
    };
    ([$($doc:literal)*] struct $name:ident {
        $($(#[doc = $field_doc:literal])* $field:ident: $type:tt;)+
    }) => {
        $crate::abi::header::Item::Struct($crate::abi::header::Struct {
            about: &[$($doc),*],
            name: stringify!($name),
            bytes: size_of::<$name>(),
            alignment: align_of::<$name>(),
            fields: &[$($crate::abi::header::Field {
                about: &[$($field_doc),*],
                name: stringify!($field),
                shared_type: stringify!($type),
                offset: std::mem::offset_of!($name, $field),
            }),+],
        })
    };
    ([$($doc:literal)*] codes = $enum:ident $prefix:literal { of $values:ident }) => {
        $crate::abi::header::Item::Enum($crate::abi::header::Enum {
            about: &[$($doc),*],
            name: stringify!($enum),
            kind: "codes",
            prefix: $prefix,
            members: &$values,
        })
    };
    ([$($doc:literal)*] $kind:ident $module:ident = $enum:ident $prefix:literal {
        $($(#[doc = $member_doc:literal])* $name:ident = $value:expr;)+
    }) => {
        $crate::abi::header::Item::Enum($crate::abi::header::Enum {
            about: &[$($doc),*],
            name: stringify!($enum),
            kind: stringify!($kind),
            prefix: $prefix,
            members: &[$($crate::abi::header::Value {
                about: &[$($member_doc),*],
                name: stringify!($name),
                value: $module::$name as i64,
            }),+],
        })
    };
}
pub(crate) use device_item;

impl Header {
    /// Returns the header's text.
    pub fn text(&self) -> String {
        let file = self.name.rsplit('/').next().expect("split has a first part");
        let (stem, _) = file.split_once('.').expect("a header's name has an extension");
        let about = comment("", self.about);
        let mut text = format!("// {file}:{}", about.trim_start_matches("//"));
        _ = writeln!(text, "//\n// Generated from src/abi/{stem}.rs.");
        _ = writeln!(text, "#pragma once\n\n#include \"{}\"", self.include);
        self.items.iter().for_each(|item| text += &item.text());
        text += "\n// The layout of the structs on the host, in bytes.\n";
        self.items.iter().for_each(|item| text += &item.assertions());
        text
    }
}

impl Item {
    /// Returns the definition for the kernels.
    fn text(&self) -> String {
        match self {
            Self::Constants(values) => values.iter().map(Value::constant).collect(),
            Self::Enum(Enum { about, name, kind, prefix, members }) => {
                let member = |value: &Value| value.member(prefix, *kind == "bits");
                let members = members.iter().map(member).collect::<String>();
                format!("\n{}enum {name} : u32 {{\n{members}}};\n", comment("", about))
            }
            Self::Struct(Struct { about, name, alignment, fields, .. }) => {
                let align = if *alignment > 8 { format!("alignas({alignment}) ") } else { String::new() };
                let fields = fields.iter().map(Field::text).collect::<String>();
                format!("\n{}struct {align}{name} {{\n{fields}}};\n", comment("", about))
            }
        }
    }

    /// Returns the lines that compare a struct's layout with the host's.
    fn assertions(&self) -> String {
        let Self::Struct(Struct { name, bytes, alignment, fields, .. }) = self else { return String::new() };
        let mut text = String::new();
        _ = writeln!(text, "static_assert(sizeof({name}) == {bytes} && alignof({name}) == {alignment});");
        for Field { name: field, offset, .. } in *fields {
            _ = writeln!(text, "static_assert(OFFSET_OF({name}, {field}) == {offset});");
        }
        text
    }
}

impl Value {
    fn constant(&self) -> String {
        let Self { about, name, value } = self;
        let value = match *value {
            ..0 => format!("({value})"),
            // Without the suffix, a literal beyond an int would have 64 bits.
            0x8000_0000.. => format!("{value:#X}u"),
            _ => value.to_string(),
        };
        // A constant without comments belongs to the one before.
        let gap = if about.is_empty() { "" } else { "\n" };
        format!("{gap}{}#define {name} {value}\n", comment("", about))
    }

    fn member(&self, prefix: &str, is_bit: bool) -> String {
        let Self { about, name, value } = self;
        let value = if is_bit {
            assert_eq!(value.count_ones(), 1, "{prefix}{name} is a bit");
            format!("1 << {}", value.trailing_zeros())
        } else {
            value.to_string()
        };
        format!("{}    {prefix}{} = {value},\n", comment("    ", about), name.to_ascii_uppercase())
    }
}

impl Field {
    fn text(&self) -> String {
        let Self { about, name, shared_type, .. } = self;
        let scalar = |name: &str| match name {
            "f32" => "float".to_owned(),
            "f64" => "double".to_owned(),
            "i32" => "int".to_owned(),
            _ => name.to_owned(),
        };
        let array = shared_type.strip_prefix('[').and_then(|array| array.strip_suffix(']')?.split_once("; "));
        let pointer = shared_type.strip_prefix('(').and_then(|pointer| pointer.strip_suffix(')'));
        let declaration = match (array, pointer) {
            (Some((of, length)), _) => format!("{} {name}[{length}]", scalar(of)),
            (_, Some(pointer)) => format!("{} {name}", pointer.replace(" *", "*")),
            _ => format!("{} {name}", scalar(shared_type)),
        };
        format!("{}    {declaration};\n", comment("    ", about))
    }
}

/// Returns lines of documentation as comments.
fn comment(indent: &str, lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{indent}//{}\n", line.trim_end())).collect()
}
