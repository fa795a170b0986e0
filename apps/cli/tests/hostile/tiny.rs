//! A model of one block that says nothing worth reading, with a vocabulary and a chat template of one's choice.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::made::Metadata;
use crate::support::Files;

const HIDDEN: usize = 32;

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

/// Returns the bytes of a model with this metadata.
pub fn model(metadata: &Metadata) -> Vec<u8> {
    let Some(Value::Array(tokens)) = metadata.get("tokenizer.ggml.tokens") else { panic!("no vocabulary") };
    let tensor = |name: &str, shape: &[usize]| {
        let tensor = Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).expect("zeros");
        (name.to_owned(), QTensor::quantize(&tensor, GgmlDType::F32).expect("f32"))
    };
    let square = |name: &str| tensor(&format!("blk.0.{name}.weight"), &[HIDDEN, HIDDEN]);
    let mut tensors: Vec<_> =
        ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"].map(square).into();
    tensors.push(tensor("token_embd.weight", &[tokens.len(), HIDDEN]));
    for norm in ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"] {
        tensors.push(tensor(norm, &[HIDDEN]));
    }
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &metadata, &tensors).expect("the file is written");
    bytes.into_inner()
}

/// Writes a model whose chat template is `template`, and returns its path.
pub fn with_template(files: &Files, template: &str) -> String {
    let mut metadata = metadata(&["\u{2581}"]);
    metadata.insert("tokenizer.chat_template".into(), Value::String(template.into()));
    files.write("template.gguf", &model(&metadata))
}
