//! The shape of a Llama-family model, as its GGUF metadata gives it.
//!
//! This refuses models that the forward pass would compute wrongly without an error: experts, other
//! architectures, sliding windows, heads that differ between layers, unknown ways of stretching the context.

use super::error::Result;
use super::gguf::Gguf;
use super::rope::Rope;

/// No size in a header is larger: products of two then fit in 64 bits.
const LARGEST: usize = u32::MAX as usize;

/// Heads have 64 to 256 elements; a damaged header must not make a table of billions.
const LARGEST_HEAD: usize = 1 << 16;

/// Sizes and constants of a Llama-family model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Transformer blocks.
    pub blocks: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Elements between the two halves of the feed-forward network.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Tokens that the model may look back on, the current one included.
    pub context: usize,
    /// What RMSNorm adds to the mean square.
    pub norm_epsilon: f32,
}

impl Config {
    /// Reads the shape and the rotation of a model.
    pub(super) fn read(gguf: &mut Gguf) -> Result<(Self, Rope)> {
        let architecture = gguf.text("general.architecture")?;
        let architecture = gguf.required("general.architecture", architecture)?.to_owned();
        if architecture != "llama" {
            return Err(gguf.unsupported(
                format!("the architecture `{architecture}`"),
                "`llama` is: Llama, Mistral, SmolLM, TinyLlama and their kin",
            ));
        }
        if gguf.integer("llama.expert_count")?.unwrap_or(0) > 0 {
            return Err(gguf.unsupported("a mixture of experts", "dense Llama models are"));
        }
        let size = |key: &str| {
            let value = gguf.integer(key)?;
            match gguf.required(key, value)? {
                value @ 1..=LARGEST => Ok(value),
                value => Err(gguf.malformed(format!("metadata `{key}` is {value}"))),
            }
        };
        let heads = size("llama.attention.head_count")?;
        let hidden = size("llama.embedding_length")?;
        let kv_heads = gguf.integer("llama.attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = gguf.integer("llama.attention.key_length")?.unwrap_or(hidden / heads);
        let value_dim = gguf.integer("llama.attention.value_length")?.unwrap_or(head_dim);
        if value_dim != head_dim {
            return Err(gguf.unsupported(
                format!("values of {value_dim} elements beside keys of {head_dim}"),
                "keys and values of one size are",
            ));
        }
        let sound = (1..=heads).contains(&kv_heads) && heads.is_multiple_of(kv_heads);
        if !sound || !(1..=LARGEST_HEAD).contains(&head_dim) {
            return Err(gguf.malformed(format!(
                "{heads} heads of {head_dim} elements cannot share {kv_heads} key heads"
            )));
        }

        let context = size("llama.context_length")?;
        if let Some(window) = gguf.integer("llama.attention.sliding_window")?
            && (1..context).contains(&window)
        {
            return Err(gguf.unsupported(
                format!("a sliding window of {window} tokens"),
                "attention to the whole context is",
            ));
        }

        let key = "llama.attention.layer_norm_rms_epsilon";
        let epsilon = gguf.number(key)?;
        let config = Config {
            blocks: size("llama.block_count")?,
            hidden,
            feed_forward: size("llama.feed_forward_length")?,
            heads,
            kv_heads,
            head_dim,
            context,
            norm_epsilon: gguf.required(key, epsilon)? as f32,
        };
        let rope = Rope::read(gguf, head_dim)?;
        Ok((config, rope))
    }
}
