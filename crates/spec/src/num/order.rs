//! The order of tokens as one integer: logit descending, then id ascending.

/// Returns bits that compare as unsigned integers in the order of the floats. NaN has no place in it.
#[must_use]
pub fn ordered_bits(z: f32) -> u32 {
    let bits = z.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// Returns the float whose [`ordered_bits`] are given.
#[must_use]
pub fn from_ordered_bits(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & 0x7FFF_FFFF } else { !bits })
}

/// Returns a token's key: larger is earlier in the order, so ties of logits go to the smaller id.
#[must_use]
pub fn key(z: f32, id: u32) -> u64 {
    (u64::from(ordered_bits(z)) << 32) | u64::from(!id)
}

/// Returns the id in a key.
#[must_use]
pub fn key_id(key: u64) -> u32 {
    !(key as u32)
}

/// Returns the logit in a key.
#[must_use]
pub fn key_logit(key: u64) -> f32 {
    from_ordered_bits((key >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_logit_descending_then_id_ascending() {
        let tokens =
            [(f32::MAX, 9), (1.0, 2), (1.0, 3), (0.0, 0), (-1e-45, 1), (-1.0, 4), (f32::NEG_INFINITY, 5)];
        for pair in tokens.windows(2) {
            assert!(key(pair[0].0, pair[0].1) > key(pair[1].0, pair[1].1), "{pair:?}");
        }
        for (z, id) in tokens {
            assert_eq!((key_logit(key(z, id)), key_id(key(z, id))), (z, id));
        }
    }
}
