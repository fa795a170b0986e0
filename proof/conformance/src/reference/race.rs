//! The race in f64: arrivals from the same words, logarithms from the library.

use gumball_spec::Scope;

use crate::case::Case;
use crate::generate::KEYS;

/// Returns the four words of a Philox4x32-10 counter.
#[must_use]
pub fn philox(seed: u64, counter: [u32; 4]) -> [u32; 4] {
    let mut c = counter.map(u128::from);
    let mut key = [u128::from(seed as u32), u128::from(seed >> 32)];
    const WORD: u128 = 1 << 32;
    for _ in 0..10 {
        let (a, b) = (c[0] * 0xD251_1F53, c[2] * 0xCD9E_8D57);
        c = [(b / WORD) ^ c[1] ^ key[0], b % WORD, (a / WORD) ^ c[3] ^ key[1], a % WORD];
        key = [(key[0] + 0x9E37_79B9) % WORD, (key[1] + 0xBB67_AE85) % WORD];
    }
    c.map(|word| word as u32)
}

/// Returns the words of a mark after a context, as seed, position and draw index.
#[must_use]
pub fn words(key: [u8; 16], context: &[u32]) -> (u64, u32, u32) {
    let mut state: [u32; 4] =
        std::array::from_fn(|i| u32::from_le_bytes(key[4 * i..][..4].try_into().expect("4 bytes")));
    for id in context {
        let mixed = philox(u64::from(*id) + (12 << 32), state);
        (0..4).for_each(|i| state[i] ^= mixed[i]);
    }
    (u64::from(state[0]) + (u64::from(state[1]) << 32), state[2], state[3])
}

/// Returns seed, position and draw index of the race of a case whose token is drawn, by its mark if it has
/// one.
#[must_use]
pub fn race_words(case: &Case) -> (u64, u32, u32) {
    let own = (case.seed, case.position, case.draw);
    let Some(watermark) = case.params.watermark.own() else { return own };
    let ids = match watermark.scope {
        Scope::Both => [case.prompt.clone(), case.output.clone()].concat(),
        _ => case.output.clone(),
    };
    let (count, rows) = (watermark.context as usize, ids.len());
    if rows < count {
        return own;
    }
    let context = |row: usize| ids[row - count..row].to_vec();
    let is_looked_at = |row: usize| watermark.window == 0 || rows - row <= watermark.window as usize;
    let came = (count..rows).any(|row| is_looked_at(row) && context(row) == context(rows));
    if came { own } else { words(KEYS[watermark.key as usize], &context(rows)) }
}

/// Returns the arrival of a token as an exponential variable of mean 1, in natural units.
#[must_use]
pub fn arrival(seed: u64, position: u32, draw: u32, id: u32) -> f64 {
    arrival_by([1, 0], seed, position, draw, id)
}

/// Returns the arrival of a token by the words of two tags, that of tiles and that of tokens.
#[must_use]
pub fn arrival_by(tags: [u32; 2], seed: u64, position: u32, draw: u32, id: u32) -> f64 {
    let [w0, w1, w2, _] = philox(seed, [id / 256, position, tags[0], draw]);
    let u = ((u64::from(w0) << 32) + u64::from(w1)).max(1) as f64 / 2f64.powi(64);
    // Near 1, 1 - u is all that is left of the word: take it from the integer.
    let rest = (u64::MAX - ((u64::from(w0) << 32) + u64::from(w1))).max(1) as f64 / 2f64.powi(64);
    let first = if u < 0.5 { -(-u).ln_1p() } else { -rest.ln() } / 256.0;
    if w2 >> 24 == id % 256 {
        return first;
    }
    let word = philox(seed, [id / 4, position, tags[1], draw])[id as usize % 4];
    let v = (2.0 * f64::from(word) + 1.0) / 2f64.powi(33);
    first - (-v).ln_1p()
}

/// Returns the winner of the race among ids, unless the second is too close.
#[must_use]
pub fn race<Z: Copy + Into<f64>>(
    z: &[Z],
    ids: &[usize],
    t: f64,
    seed: u64,
    position: u32,
    draw: u32,
) -> Option<usize> {
    let z = |id: usize| -> f64 { z[id].into() };
    let best = ids.iter().map(|id| z(*id)).fold(f64::NEG_INFINITY, f64::max);
    let mut scores: Vec<(f64, usize)> = ids
        .iter()
        .map(|id| ((z(*id) - best) / t - arrival(seed, position, draw, *id as u32).ln(), *id))
        .collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    match scores[..] {
        [(_, only)] => Some(only),
        [(first, id), (second, _), ..] => (first - second > 2e-5).then_some(id),
        [] => None,
    }
}

/// Returns XTC's coin.
#[must_use]
pub fn xtc_acts(probability: f32, seed: u64, position: u32, draw: u32) -> bool {
    let word = philox(seed, [0, position, 2, draw])[0];
    f64::from(word) < (f64::from(probability) * 2f64.powi(32)).ceil()
}
