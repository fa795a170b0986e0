//! The metadata of a model of one block, with a vocabulary of one's choice.

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::Value;

use crate::made::Metadata;

/// Elements of a hidden state.
pub const HIDDEN: usize = 32;

/// Returns the metadata of a SentencePiece vocabulary of all bytes and these pieces.
pub fn metadata(pieces: &[&str]) -> Metadata {
    let mut tokens: Vec<(String, i32)> =
        [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(t, k)| (t.into(), k)).into();
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6)));
    tokens.extend(pieces.iter().map(|piece| ((*piece).to_owned(), 1)));
    let number = |value: usize| Value::U32(value as u32);
    let list = |value: &dyn Fn(&(String, i32)) -> Value| Value::Array(tokens.iter().map(value).collect());
    Metadata::from(
        [
            ("general.architecture", Value::String("llama".into())),
            ("llama.block_count", number(1)),
            ("llama.embedding_length", number(HIDDEN)),
            ("llama.feed_forward_length", number(HIDDEN)),
            ("llama.attention.head_count", number(1)),
            ("llama.context_length", number(4096)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("llama.rope.freq_base", Value::F32(500.0)),
            ("tokenizer.ggml.model", Value::String("llama".into())),
            ("tokenizer.ggml.tokens", list(&|(text, _)| Value::String(text.clone()))),
            ("tokenizer.ggml.scores", list(&|_| Value::F32(0.0))),
            ("tokenizer.ggml.token_type", list(&|(_, kind)| Value::I32(*kind))),
            ("tokenizer.ggml.bos_token_id", number(1)),
            ("tokenizer.ggml.eos_token_id", number(2)),
            ("tokenizer.ggml.unknown_token_id", number(0)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// Returns the tensors of a model of one block; one without an output matrix ties it to the embedding.
pub fn tensors(
    vocab: usize,
    hidden: usize,
    is_tied: bool,
    mut tensor: impl FnMut(&str, &[usize]) -> QTensor,
) -> Vec<(String, QTensor)> {
    let matrices = ["token_embd.weight", "output.weight"].map(|name| (name.to_owned(), vec![vocab, hidden]));
    let names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let squares = names.map(|name| (format!("blk.0.{name}.weight"), vec![hidden; 2]));
    let norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"];
    let norms = norms.map(|name| (name.to_owned(), vec![hidden]));
    let all = matrices.into_iter().take(if is_tied { 1 } else { 2 }).chain(squares).chain(norms);
    all.map(|(name, shape)| (name.clone(), tensor(&name, &shape))).collect()
}
