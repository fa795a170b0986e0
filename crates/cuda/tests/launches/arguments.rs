//! The arguments of launches by the names of their fields, with names in place of addresses.
//!
//! The kernels' sources say which struct each kernel takes, and the headers that are generated from `src/abi`
//! how it is laid out.

use std::collections::HashMap;
use std::fs;

use gumball_cuda::{Launch, Tap};

/// The values of an argument that are not 0, by the paths of their fields.
pub type Fields = Vec<(String, String)>;

/// A field of a struct: its type, its name with the length if it is an array, and the offset in bytes.
struct Field {
    of_type: String,
    name: String,
    length: Option<usize>,
    offset: usize,
}

/// The structs that kernels take.
pub struct Arguments {
    structs: HashMap<String, Vec<Field>>,
    /// With what the names of kernels begin, and the struct that these take.
    kernels: Vec<(String, String)>,
}

/// A number in an argument.
struct Number {
    path: String,
    of_type: String,
    bits: u64,
}

impl Arguments {
    /// Reads the sources of this crate.
    pub fn new() -> Self {
        let (mut structs, mut kernels) = (HashMap::new(), Vec::new());
        gumball_cuda::generated_headers().for_each(|(_, text)| add_structs(text, &mut structs));
        for file in
            fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels")).expect("a folder of this crate")
        {
            let text = fs::read_to_string(file.expect("an entry").path()).expect("a text");
            add_kernels(&text, &mut kernels);
        }
        Self { structs, kernels }
    }

    /// Returns the struct of a launch's argument and its values.
    ///
    /// An address is written as the name of the first field of the list of launches that points to its
    /// allocation, so `names` must be that list's, from [`Arguments::names`].
    pub fn fields(&self, launch: &Launch, names: &HashMap<u64, String>, tap: &Tap) -> (&str, Fields) {
        let (of_type, numbers) = self.numbers(launch);
        let numbers = numbers.into_iter().filter(|number| number.bits != 0);
        (of_type, numbers.map(|number| (number.path.clone(), number.text(names, tap))).collect())
    }

    /// Names the allocations that a list of launches points to, each by the first field that does. Fields of
    /// a launch's own struct come before fields of the structs inside it.
    pub fn names(&self, launches: &[Launch], tap: &Tap) -> HashMap<u64, String> {
        let mut names = HashMap::new();
        for launch in launches {
            let (_, mut numbers) = self.numbers(launch);
            numbers.sort_by_key(|number| number.path.contains('.'));
            for Number { path, bits, .. } in numbers {
                let Some(start) = tap.allocation(bits) else { continue };
                let field = path.rsplit('.').next().expect("a path has an end").to_owned();
                let taken = names.values().filter(|name: &&String| name.split('#').next() == Some(&field));
                let name = match taken.count() {
                    0 => field,
                    others => format!("{field}#{}", others + 1),
                };
                names.entry(start).or_insert(name);
            }
        }
        names
    }

    /// Returns the struct that a launch takes, and its numbers.
    fn numbers(&self, launch: &Launch) -> (&str, Vec<Number>) {
        let kernel = launch.kernel.name();
        let fits = self.kernels.iter().filter(|(start, _)| kernel.starts_with(start));
        let (_, of_type) = fits.max_by_key(|(start, _)| start.len()).expect("a source has the kernel");
        let bytes: Vec<u8> = launch.argument.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut numbers = Vec::new();
        self.add_numbers(of_type, &bytes, "", &mut numbers);
        (of_type, numbers)
    }

    /// Adds the numbers of a struct, and returns how many bytes these have.
    fn add_numbers(&self, of_type: &str, bytes: &[u8], path: &str, to: &mut Vec<Number>) -> usize {
        let mut end = 0;
        for Field { of_type, name, length, offset } in &self.structs[of_type] {
            end = *offset;
            for index in 0..length.unwrap_or(1) {
                let element = length.map_or(String::new(), |_| format!("[{index}]"));
                let path = format!("{path}{name}{element}");
                end += match of_type.as_str() {
                    of_type if self.structs.contains_key(of_type) => {
                        self.add_numbers(of_type, &bytes[end..], &format!("{path}."), to)
                    }
                    of_type => {
                        let size = if matches!(of_type, "u32" | "int" | "float") { 4 } else { 8 };
                        let mut word = [0; 8];
                        word[..size].copy_from_slice(&bytes[end..][..size]);
                        to.push(Number { path, of_type: of_type.to_owned(), bits: u64::from_le_bytes(word) });
                        size
                    }
                };
            }
        }
        end
    }
}

impl Number {
    fn text(&self, names: &HashMap<u64, String>, tap: &Tap) -> String {
        if let Some(start) = tap.allocation(self.bits) {
            let offset = self.bits.wrapping_sub(start) as i64;
            let name = &names[&start];
            return if offset == 0 { name.clone() } else { format!("{name}{offset:+}") };
        }
        match self.of_type.as_str() {
            "float" => format!("{:?}", f32::from_bits(self.bits as u32)),
            "double" => format!("{:?}", f64::from_bits(self.bits)),
            "int" => (self.bits as i32).to_string(),
            _ => self.bits.to_string(),
        }
    }
}

/// Adds the structs of a header, whose last lines say the offsets of their fields.
fn add_structs(header: &str, structs: &mut HashMap<String, Vec<Field>>) {
    let mut of_struct: Option<(String, Vec<Field>)> = None;
    for line in header.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(start) = line.strip_prefix("struct ").and_then(|start| start.strip_suffix(" {")) {
            let name = start.rsplit(' ').next().expect("a struct has a name");
            of_struct = Some((name.to_owned(), Vec::new()));
        } else if line == "};" {
            structs.extend(of_struct.take());
        } else if let Some((_, fields)) = &mut of_struct {
            let (of_type, name) = line.trim_end_matches(';').rsplit_once(' ').expect("a field");
            let (name, length) = match name.trim_end_matches(']').split_once('[') {
                Some((name, length)) => (name, Some(length.parse().expect("a length"))),
                None => (name, None),
            };
            let (of_type, name) = (of_type.to_owned(), name.to_owned());
            fields.push(Field { of_type, name, length, offset: usize::MAX });
        } else if let Some(offset) = line.strip_prefix("static_assert(OFFSET_OF(") {
            let (of, offset) = offset.trim_end_matches(");").split_once(") == ").expect("an offset");
            let (of_struct, name) = of.split_once(", ").expect("a struct and a field");
            let fields = structs.get_mut(of_struct).expect("defined above");
            let field = fields.iter_mut().find(|field| field.name == name).expect("a field of it");
            field.offset = offset.parse().expect("a number");
        }
    }
}

/// Adds the kernels that a source defines: with what their names begin, and their struct. The surveys' names
/// are an argument of a macro, `name`.
fn add_kernels(source: &str, kernels: &mut Vec<(String, String)>) {
    let definitions = source.lines().filter_map(|line| {
        let line = line.trim_start();
        let arguments = line.strip_prefix("KERNEL(").or(line.strip_prefix("KERNEL_MIN_BLOCKS("))?;
        let arguments: Vec<&str> = arguments.split(')').next()?.split(", ").collect();
        Some((arguments[0].split("##").next()?, arguments[arguments.len() - 2]))
    });
    for (start, of_type) in definitions {
        let start = if start == "name" { "survey" } else { start };
        kernels.push((start.to_owned(), of_type.to_owned()));
    }
}
