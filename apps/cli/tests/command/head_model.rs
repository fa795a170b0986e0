//! A model whose hidden states are its embeddings, for tests of heads.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::made;
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
    let tensor = |name: &str, shape: &[usize]| {
        let values = match name {
            "token_embd.weight" => numbers(tokens.len() * HIDDEN, seed),
            "output.weight" => numbers(tokens.len() * HIDDEN, seed + 1),
            _ => vec![if shape.len() == 2 { 0.0 } else { 1.0 }; shape.iter().product()],
        };
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor");
        let dtype = if shape.len() == 2 { dtype } else { GgmlDType::F32 };
        QTensor::quantize(&tensor, dtype).expect("quantised")
    };
    let tensors = tiny::tensors(tokens.len(), HIDDEN, is_tied, tensor);
    made::bytes(&metadata, &tensors)
}
