//! A model of one block that says nothing worth reading, with a vocabulary and a chat template of one's
//! choice.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::made::{self, Metadata};
use crate::support::Files;
use crate::tiny::{self, HIDDEN, metadata};

/// Returns the bytes of a model with this metadata.
pub fn model(metadata: &Metadata) -> Vec<u8> {
    let Some(Value::Array(tokens)) = metadata.get("tokenizer.ggml.tokens") else { panic!("no vocabulary") };
    let tensors = tiny::tensors(tokens.len(), HIDDEN, true, |_, shape| {
        let tensor = Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).expect("zeros");
        QTensor::quantize(&tensor, GgmlDType::F32).expect("f32")
    });
    made::bytes(metadata, &tensors)
}

/// Writes a model whose chat template is `template`, and returns its path.
pub fn with_template(files: &Files, template: &str) -> String {
    let mut metadata = metadata(&["\u{2581}"]);
    metadata.insert("tokenizer.chat_template".into(), Value::String(template.into()));
    files.write("template.gguf", &model(&metadata))
}
