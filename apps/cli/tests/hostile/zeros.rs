//! A model of one block that says nothing worth reading, with a vocabulary and a chat template of one's choice.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::made::Metadata;
use crate::support::Files;
use crate::tiny::{HIDDEN, metadata};

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
