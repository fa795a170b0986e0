//! A model whose hidden states are its embeddings, for tests of heads.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::tiny::{self, HIDDEN};

const PIECES: [&str; 6] = ["\u{2581}", "a", "b", "ab", "ba", "\u{2581}a"];

/// Numbers around 0 that look random.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next() + next()).collect()
}

/// Returns the bytes of a model whose hidden states are its embeddings, with an output matrix of its own or tied to these.
pub fn model(dtype: GgmlDType, seed: u64, is_tied: bool) -> Vec<u8> {
    let metadata = tiny::metadata(&PIECES);
    let Some(Value::Array(tokens)) = metadata.get("tokenizer.ggml.tokens") else { panic!("no vocabulary") };
    let tensor = |name: &str, shape: &[usize], values: Vec<f32>| {
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor");
        let dtype = if shape.len() == 2 { dtype } else { GgmlDType::F32 };
        (name.to_owned(), QTensor::quantize(&tensor, dtype).expect("quantised"))
    };
    let matrix = [tokens.len(), HIDDEN];
    let mut tensors = vec![tensor("token_embd.weight", &matrix, numbers(tokens.len() * HIDDEN, seed))];
    if !is_tied {
        tensors.push(tensor("output.weight", &matrix, numbers(tokens.len() * HIDDEN, seed + 1)));
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        tensors.push(tensor(&format!("blk.0.{name}.weight"), &[HIDDEN; 2], vec![0.0; HIDDEN * HIDDEN]));
    }
    for norm in ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"] {
        tensors.push(tensor(norm, &[HIDDEN], vec![1.0; HIDDEN]));
    }
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &metadata, &tensors).expect("the file is written");
    bytes.into_inner()
}
