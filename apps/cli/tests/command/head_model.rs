//! A model whose hidden states are its embeddings, for tests of heads.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::made;
use crate::support::uniform;
use crate::tiny::{self, HIDDEN};

const PIECES: [&str; 6] = ["\u{2581}", "a", "b", "ab", "ba", "\u{2581}a"];

/// Numbers around 0 that look random.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let all: Vec<f32> = uniform(seed).take(2 * count).collect();
    all.chunks(2).map(|pair| pair[0] + pair[1]).collect()
}

/// Returns the bytes of a model whose hidden states are its embeddings, with an output matrix of its own or
/// tied to these.
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
