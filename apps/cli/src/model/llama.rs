//! The forward pass of a Llama-family model: tokens in, hidden states out, and logits from those.
//!
//! The pass stops at the hidden states on purpose: the last product, with the output matrix, belongs to
//! the code that turns hidden states into tokens. [`Llama::logits`] is the plain way to do it.
//!
//! ```text
//! tokens -> embedding -> blocks x [ norm, attention, +, norm, feed-forward, + ] -> norm = hidden -> logits
//! ```
//!
//! **Reproducible.** The same tokens give the same bits at every number of threads, and whether they come
//! in one call or one by one: every sum's order depends on its length alone. (The second holds for calls of
//! up to [`ROWS_LIKE_ONE`](super::ROWS_LIKE_ONE) tokens. It holds for longer ones unless weights are Q6_K, or
//! Q4_K where there is AMX, or another type that `weights` leaves to candle's product off x86: there candle
//! takes another kernel for many rows.) Between machines the bits may differ: candle's kernels round
//! differently with AVX2, without it, and with NEON, and the exponential is the C library's. AVX-512 changes
//! nothing unless weights are K-quants.

use super::attention::{Cache, attend};
use super::config::Config;
use super::error::{Error, Result};
use super::gguf::Gguf;
use super::rope::{Rope, Turn, rotate};
use super::weights::{Linear, Rows, dot, vector};

/// Tokens that go through the blocks together: the weights are read once for them, and that is a small part
/// of the work from here on, so more would only cost memory.
const ROWS_AT_ONCE: usize = 64;

/// Final-normed hidden states, one row for each token given.
#[derive(Debug, Clone, PartialEq)]
pub struct Hidden {
    values: Vec<f32>,
    width: usize,
}

impl Hidden {
    /// All rows, `[len, width]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows, at least one.
    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    /// False: a forward pass yields at least one row.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// One row.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.width..][..self.width]
    }

    /// The last rows, one after the other.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn last_rows(&self, rows: usize) -> &[f32] {
        &self.values[(self.len() - rows) * self.width..]
    }

    /// The row of the last token.
    pub fn last(&self) -> &[f32] {
        self.row(self.len() - 1)
    }

    /// The row of the last token, alone.
    #[must_use]
    pub fn into_last(self) -> Self {
        Hidden { values: self.last().to_vec(), width: self.width }
    }
}

/// The output matrix of a file, as f32.
#[derive(Debug)]
pub struct HeadMatrix {
    /// The tensor's name.
    pub name: String,
    /// The matrix, `[vocab, width]`.
    pub weights: Vec<f32>,
    /// Ids.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub width: usize,
    /// A bias for each id, if there is one.
    pub bias: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Block {
    attention_norm: Vec<f32>,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
    cache: Cache,
}

/// A Llama-family model and the keys and values of the tokens it has seen.
#[derive(Debug)]
pub struct Llama {
    config: Config,
    rope: Rope,
    embedding: Linear,
    blocks: Vec<Block>,
    norm: Vec<f32>,
    /// `None` where the embedding serves as output matrix too.
    head: Option<Linear>,
    /// Positions in the caches.
    length: usize,
}

impl Llama {
    /// Loads the weights of a model.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for another architecture or a feature that this pass does not do.
    /// - [`Error::Malformed`] if a tensor or a key is missing or has the wrong shape.
    pub fn load(gguf: &mut Gguf) -> Result<Self> {
        let (config, rope) = Config::read(gguf)?;
        let hidden = config.hidden;
        let embedding = Linear::load(gguf, "token_embd", hidden, None)?;
        let blocks =
            (0..config.blocks).map(|index| Block::load(gguf, &config, index)).collect::<Result<_>>()?;
        let norm = vector(gguf, "output_norm.weight", hidden)?;
        let head = match gguf.has("output.weight") {
            true => Some(Linear::load(gguf, "output", hidden, Some(embedding.outputs))?),
            false => None,
        };
        Ok(Llama { config, rope, embedding, blocks, norm, head, length: 0 })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Logits in a row: rows of the output matrix, padding included.
    pub fn vocab(&self) -> usize {
        self.embedding.outputs
    }

    /// Tokens in the cache: the position of the next token.
    pub fn position(&self) -> usize {
        self.length
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Forgets every token from `position` on; one at or beyond [`position`](Self::position) changes nothing.
    pub fn truncate(&mut self, position: usize) {
        self.length = self.length.min(position);
        let elements = self.length * self.config.kv_heads * self.config.head_dim;
        self.blocks.iter_mut().for_each(|block| block.cache.truncate(elements));
    }

    /// Runs tokens through the model after the tokens it has seen, and returns a hidden state for each.
    ///
    /// A prompt at once and one token after another agree, for most weights to the bit (see the module's
    /// head). After an error the cache is as it was.
    ///
    /// # Errors
    /// - [`Error::NoTokens`] if `tokens` is empty.
    /// - [`Error::NoSuchToken`] if a token is not below [`vocab`](Self::vocab).
    /// - [`Error::ContextFull`] if the tokens do not fit after the tokens held.
    /// - [`Error::Forward`] if candle fails.
    pub fn hidden(&mut self, tokens: &[u32]) -> Result<Hidden> {
        let (held, asked, context) = (self.length, tokens.len(), self.config.context);
        if tokens.is_empty() {
            return Err(Error::NoTokens);
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= self.vocab()) {
            return Err(Error::NoSuchToken { token, vocab: self.vocab() });
        }
        if held + asked > context {
            return Err(Error::ContextFull { held, asked, context });
        }

        let width = self.config.hidden;
        let mut values = Vec::with_capacity(asked * width);
        for tokens in tokens.chunks(ROWS_AT_ONCE) {
            // On a rayon thread, so that products need not hop there one by one.
            match rayon::scope(|_| self.pass(tokens)) {
                Ok(rows) => values.extend(rows),
                Err(error) => {
                    self.truncate(held);
                    return Err(error);
                }
            }
        }
        Ok(Hidden { values, width })
    }

    /// The logits after the last token of `hidden`: `[vocab]`.
    ///
    /// # Errors
    /// - [`Error::Forward`] if candle fails.
    pub fn logits(&self, hidden: &Hidden) -> Result<Vec<f32>> {
        self.logits_last(hidden, 1)
    }

    /// The logits after each of the last `rows` tokens of `hidden`: `[rows, vocab]`.
    ///
    /// # Errors
    /// - [`Error::Forward`] if candle fails.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn logits_last(&self, hidden: &Hidden, rows: usize) -> Result<Vec<f32>> {
        self.head().apply(&Rows::new(hidden.last_rows(rows).to_vec(), hidden.width))
    }

    /// The logits after each token of `hidden`: `[rows, vocab]`.
    ///
    /// That is `4 * vocab` bytes a row: pass long texts to [`hidden`](Self::hidden) in pieces.
    ///
    /// # Errors
    /// - [`Error::Forward`] if candle fails.
    pub fn logits_all(&self, hidden: &Hidden) -> Result<Vec<f32>> {
        self.logits_last(hidden, hidden.len())
    }

    /// The output matrix as f32, `[vocab, hidden]`, for an LM head that stands in for the last product.
    ///
    /// # Errors
    /// - [`Error::Forward`] if candle fails.
    pub fn head_matrix(&self) -> Result<Vec<f32>> {
        self.head().dequantise()
    }

    /// The output bias, `[vocab]`, if there is one.
    pub fn head_bias(&self) -> Option<&[f32]> {
        self.head().bias()
    }

    /// Reads the output matrix of a file without loading the model: the same matrix that
    /// [`head_matrix`](Self::head_matrix) returns after a load.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if it is missing or no matrix.
    pub fn output_matrix(gguf: &mut Gguf) -> Result<HeadMatrix> {
        let name = if gguf.has("output.weight") { "output" } else { "token_embd" };
        let tensor = format!("{name}.weight");
        let Some(&[_, width]) = gguf.shape(&tensor) else {
            return Err(gguf.malformed(format!("it has no matrix `{tensor}`")));
        };
        let linear = Linear::load(gguf, name, width, None)?;
        let bias = linear.bias().map(<[f32]>::to_vec);
        Ok(HeadMatrix { name: tensor, weights: linear.dequantise()?, vocab: linear.outputs, width, bias })
    }

    fn head(&self) -> &Linear {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    fn pass(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let Config { hidden, norm_epsilon, .. } = self.config;
        let turns: Vec<_> =
            (self.length..self.length + tokens.len()).map(|position| self.rope.turn(position)).collect();
        let mut stream = self.embedding.gather(tokens)?;
        for block in &mut self.blocks {
            let rows = Rows::new(normed(&stream, &block.attention_norm, norm_epsilon), hidden);
            let mixed = block.attention(&self.config, &rows, self.length, &turns)?;
            add(&mut stream, &mixed);
            let rows = Rows::new(normed(&stream, &block.feed_forward_norm, norm_epsilon), hidden);
            add(&mut stream, &block.feed_forward(&rows)?);
        }
        self.length += tokens.len();
        Ok(normed(&stream, &self.norm, norm_epsilon))
    }
}

impl Block {
    fn load(gguf: &mut Gguf, config: &Config, index: usize) -> Result<Self> {
        let Config { hidden, feed_forward, head_dim, .. } = *config;
        let (wide, narrow) = (config.heads * head_dim, config.kv_heads * head_dim);
        let mut linear = |name: &str, inputs, outputs| {
            Linear::load(gguf, &format!("blk.{index}.{name}"), inputs, Some(outputs))
        };
        let query = linear("attn_q", hidden, wide)?;
        let key = linear("attn_k", hidden, narrow)?;
        let value = linear("attn_v", hidden, narrow)?;
        let output = linear("attn_output", wide, hidden)?;
        let gate = linear("ffn_gate", hidden, feed_forward)?;
        let up = linear("ffn_up", hidden, feed_forward)?;
        let down = linear("ffn_down", feed_forward, hidden)?;
        let attention_norm = vector(gguf, &format!("blk.{index}.attn_norm.weight"), hidden)?;
        let feed_forward_norm = vector(gguf, &format!("blk.{index}.ffn_norm.weight"), hidden)?;
        let cache = Cache::default();
        Ok(Block { attention_norm, query, key, value, output, feed_forward_norm, gate, up, down, cache })
    }

    fn attention(&mut self, config: &Config, rows: &Rows, start: usize, turns: &[Turn]) -> Result<Vec<f32>> {
        let mut queries = self.query.apply(rows)?;
        let mut keys = self.key.apply(rows)?;
        let values = self.value.apply(rows)?;
        for (linear, heads) in [(&self.query, &mut queries), (&self.key, &mut keys)] {
            for (row, turn) in heads.chunks_exact_mut(linear.outputs).zip(turns) {
                rotate(row, config.head_dim, turn);
            }
        }
        self.cache.push(&keys, &values);
        let mixed = attend(config, &self.cache, &queries, start);
        self.output.apply(&Rows::new(mixed, self.output.inputs))
    }

    /// SwiGLU.
    fn feed_forward(&self, rows: &Rows) -> Result<Vec<f32>> {
        let mut gated = self.gate.apply(rows)?;
        let up = self.up.apply(rows)?;
        gated.iter_mut().zip(up).for_each(|(gate, up)| *gate = *gate / (1.0 + (-*gate).exp()) * up);
        self.down.apply(&Rows::new(gated, self.down.inputs))
    }
}

/// RMSNorm of every row, times `weight`.
fn normed(rows: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut normed = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(weight.len()) {
        let mean_square = dot(row, row) / row.len() as f32;
        let scale = 1.0 / (mean_square + epsilon).sqrt();
        normed.extend(row.iter().zip(weight).map(|(value, weight)| value * scale * weight));
    }
    normed
}

fn add(sums: &mut [f32], terms: &[f32]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}
