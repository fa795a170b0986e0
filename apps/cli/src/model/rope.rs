//! Rotary positions: each pair of a head's elements turns by an angle that grows with the position.
//!
//! GGUF files of the architecture `llama` hold query and key rows permuted so that a pair is two
//! neighbours, `2i` and `2i + 1` (not `i` and `i + half`, as in the original checkpoints). Angles are
//! computed in f64. Stretched contexts: linear scaling, and the per-pair factors that Llama 3.1 files
//! carry as `rope_freqs.weight`. YaRN and its kin are refused.

use super::error::Result;
use super::gguf::Gguf;
use super::weights::vector;

/// The rotation of one model.
#[derive(Debug, Clone)]
pub(super) struct Rope {
    /// Radians per position, one for each rotated pair; further elements of a head stay as they are.
    frequencies: Vec<f64>,
}

/// Cosine and sine of each pair's angle at one position.
pub(super) type Turn = Vec<(f32, f32)>;

impl Rope {
    /// Reads base, scaling and factors.
    pub(super) fn read(gguf: &mut Gguf, head_dim: usize) -> Result<Self> {
        let rotated = gguf.integer("llama.rope.dimension_count")?.unwrap_or(head_dim);
        if rotated > head_dim || !rotated.is_multiple_of(2) {
            return Err(gguf.malformed(format!("{rotated} rotated of {head_dim} elements of a head")));
        }
        let base = gguf.number("llama.rope.freq_base")?.unwrap_or(10_000.0);
        let scale = Self::scale(gguf)?;
        let sound = base > 0.0 && base.is_finite() && scale > 0.0 && scale.is_finite();
        if !sound {
            return Err(gguf.malformed(format!("rope base {base} and scaling factor {scale}")));
        }

        let mut frequencies: Vec<f64> =
            (0..rotated / 2).map(|pair| base.powf(-2.0 * pair as f64 / rotated as f64) / scale).collect();
        if gguf.has("rope_freqs.weight") {
            let factors = vector(gguf, "rope_freqs.weight", rotated / 2)?;
            frequencies.iter_mut().zip(factors).for_each(|(turn, factor)| *turn /= f64::from(factor));
        }
        Ok(Rope { frequencies })
    }

    fn scale(gguf: &Gguf) -> Result<f64> {
        let factor = match gguf.number("llama.rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => gguf.number("llama.rope.scale_linear")?,
        };
        match gguf.text("llama.rope.scaling.type")? {
            Some("none") => Ok(1.0),
            // Files older than the key `scaling.type` mean linear; a factor of 0 means none.
            Some("linear") | None => Ok(factor.filter(|&factor| factor != 0.0).unwrap_or(1.0)),
            Some(other) => Err(gguf.unsupported(
                format!("rope scaling `{other}`"),
                "`none`, `linear` and the factors of `rope_freqs.weight` are",
            )),
        }
    }

    /// The turn of every pair at a position.
    pub(super) fn turn(&self, position: usize) -> Turn {
        let turn = |frequency: &f64| {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (cos as f32, sin as f32)
        };
        self.frequencies.iter().map(turn).collect()
    }
}

/// Turns every head of a row in place.
pub(super) fn rotate(heads: &mut [f32], head_dim: usize, turn: &Turn) {
    for head in heads.chunks_exact_mut(head_dim) {
        for (pair, (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turn) {
            let [x, y] = *pair;
            *pair = [x * cos - y * sin, x * sin + y * cos];
        }
    }
}
