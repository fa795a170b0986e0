//! What an ELF image of machine code says of its kernels: registers a thread, and bytes of stack, where spills lie.

use std::collections::BTreeMap;

/// What a kernel needs of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub registers: u32,
    pub stack_bytes: u32,
}

/// Attributes of `.nv.info`, each a pair of a symbol and a value.
const FRAME_SIZE: u8 = 0x11;
const REGISTER_COUNT: u8 = 0x2F;
const PAIR: u8 = 4;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
}

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")))
}

fn text(bytes: &[u8], at: usize) -> String {
    bytes[at..].iter().take_while(|byte| **byte != 0).map(|byte| *byte as char).collect()
}

/// Returns the sections of an image by name.
fn sections(image: &[u8]) -> BTreeMap<String, &[u8]> {
    let (table, size, count) = (long(image, 0x28), half(image, 0x3A), half(image, 0x3C));
    let header = |i: usize| &image[table + i * size..table + (i + 1) * size];
    let names = long(header(half(image, 0x3E)), 0x18);
    let section = |i: usize| {
        let header = header(i);
        let name = text(image, names + word(header, 0) as usize);
        // A section of type 8 lies nowhere in the image.
        let bytes = if word(header, 4) == 8 { 0 } else { long(header, 0x20) };
        (name, &image[long(header, 0x18)..][..bytes])
    };
    (0..count).map(section).collect()
}

/// Returns the resources of each function of an image.
pub fn resources(image: &[u8]) -> BTreeMap<String, Resources> {
    let sections = sections(image);
    let (symbols, names, info) = (sections[".symtab"], sections[".strtab"], sections[".nv.info"]);
    let mut found: BTreeMap<String, Resources> = BTreeMap::new();
    let mut at = 0;
    while at + 4 <= info.len() {
        let (format, attribute, bytes) = (info[at], info[at + 1], half(info, at + 2));
        if format != PAIR {
            at += 4;
            continue;
        }
        if attribute == FRAME_SIZE || attribute == REGISTER_COUNT {
            let symbol = &symbols[word(info, at + 4) as usize * 24..];
            let resources = found.entry(text(names, word(symbol, 0) as usize)).or_default();
            let value = word(info, at + 8);
            if attribute == FRAME_SIZE { resources.stack_bytes = value } else { resources.registers = value }
        }
        at += 4 + bytes;
    }
    found
}
