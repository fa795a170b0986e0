//! The types of numbers in device memory.

/// The type of a row's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// bfloat16: the upper 16 bits of a single-precision number, 2 bytes.
    Bf16,
    /// IEEE 754 half precision, 2 bytes.
    F16,
}

impl Dtype {
    /// Returns the type's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
        }
    }

    /// Returns the size of an element in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }
}

/// The type of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntType {
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
}

impl IntType {
    /// Returns the type's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IntType::I32 => "i32",
            IntType::U32 => "u32",
            IntType::I64 => "i64",
            IntType::U64 => "u64",
        }
    }

    /// Returns the size of an integer in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        if matches!(self, IntType::I32 | IntType::U32) { 4 } else { 8 }
    }
}

/// The type of a column's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// Integers.
    Int(IntType),
}

impl From<IntType> for ColumnType {
    fn from(dtype: IntType) -> Self {
        ColumnType::Int(dtype)
    }
}

impl ColumnType {
    /// Returns the type's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::F32 => Dtype::F32.name(),
            ColumnType::Int(dtype) => dtype.name(),
        }
    }

    /// Returns the size of a number in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            ColumnType::F32 => Dtype::F32.bytes(),
            ColumnType::Int(dtype) => dtype.bytes(),
        }
    }
}
