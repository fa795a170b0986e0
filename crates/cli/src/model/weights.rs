//! A weight matrix and its product with rows of activations.
//!
//! Quantised matrices are multiplied by candle's kernels. Those have no SIMD path for Q4_1, Q5_0, Q5_1
//! and Q8_1, so such tensors are requantised to Q8_0 at set-up: several times faster, at the price of
//! rounding each weight once more by at most 1/254 of the largest in its block of 32. F16, BF16 and F32
//! matrices are kept as f32, exactly, and multiplied by [`dot`].
//!
//! Every output element is one dot product in an order that never depends on threads, and depends on the
//! number of rows only where candle has a kernel of its own for many (Q6_K; Q4_K with AMX).

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CpuStorage, CustomOp1, Device, Layout};
use rayon::prelude::*;

use super::error::{Error, Result};
use super::gguf::Gguf;

/// Rows of activations, one after another, in the form that candle's kernels take.
#[derive(Debug)]
pub(super) struct Rows {
    storage: CpuStorage,
    pub(super) count: usize,
    pub(super) width: usize,
}

impl Rows {
    /// Takes `values` as rows of `width` elements.
    pub(super) fn new(values: Vec<f32>, width: usize) -> Self {
        let count = values.len() / width;
        assert_eq!(count * width, values.len(), "rows of {width} in {} values", values.len());
        Rows { storage: CpuStorage::F32(values), count, width }
    }

    /// All rows as one slice.
    pub(super) fn values(&self) -> &[f32] {
        match &self.storage {
            CpuStorage::F32(values) => values,
            _ => unreachable!("rows are made of f32"),
        }
    }
}

#[derive(Debug)]
enum Weight {
    Quantised(QTensor),
    Full(Vec<f32>),
}

/// A matrix `[outputs, inputs]` with an optional bias, as a GGUF file names them.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

impl Linear {
    /// Reads `{name}.weight`, and `{name}.bias` if there is one, and checks the inputs.
    pub(super) fn load(gguf: &mut Gguf, name: &str, inputs: usize, outputs: Option<usize>) -> Result<Self> {
        let tensor = gguf.tensor(&format!("{name}.weight"))?;
        let shape = tensor.shape().dims().to_vec();
        let sound = shape.len() == 2 && shape[1] == inputs && outputs.is_none_or(|n| n == shape[0]);
        if !sound {
            let wanted = outputs.map_or("any".into(), |n| n.to_string());
            let reason = format!("`{name}.weight` has shape {shape:?}, not [{wanted}, {inputs}]");
            return Err(gguf.malformed(reason));
        }
        let bias = format!("{name}.bias");
        let bias = if gguf.has(&bias) { Some(vector(gguf, &bias, shape[0])?) } else { None };
        Ok(Linear { weight: weight(tensor)?, bias, outputs: shape[0], inputs })
    }

    /// The product with every row: `[rows, inputs] -> [rows, outputs]`.
    pub(super) fn apply(&self, rows: &Rows) -> Result<Vec<f32>> {
        assert_eq!(rows.width, self.inputs, "activations do not fit the matrix");
        let mut product = match &self.weight {
            Weight::Full(weight) => full_product(weight, rows, self.outputs),
            Weight::Quantised(weight) => {
                let layout = Layout::contiguous((rows.count, rows.width));
                match weight.cpu_fwd(&rows.storage, &layout)?.0 {
                    CpuStorage::F32(product) => product,
                    _ => unreachable!("candle multiplies f32 rows into f32"),
                }
            }
        };
        if let Some(bias) = &self.bias {
            for row in product.chunks_exact_mut(self.outputs) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
        Ok(product)
    }

    /// Rows of the matrix by index, as f32, appended to one another.
    pub(super) fn gather(&self, indices: &[u32]) -> Result<Vec<f32>> {
        match &self.weight {
            Weight::Full(weight) => {
                let row = |&index: &u32| &weight[index as usize * self.inputs..][..self.inputs];
                Ok(indices.iter().flat_map(row).copied().collect())
            }
            Weight::Quantised(weight) => {
                let indices = candle_core::Tensor::new(indices, &Device::Cpu)?;
                Ok(weight.embedding(&indices)?.flatten_all()?.to_vec1()?)
            }
        }
    }

    /// The whole matrix as f32, `[outputs, inputs]`.
    pub(super) fn dequantise(&self) -> Result<Vec<f32>> {
        match &self.weight {
            Weight::Full(weight) => Ok(weight.clone()),
            Weight::Quantised(weight) => floats(weight),
        }
    }
}

/// Reads a tensor of one dimension as f32.
pub(super) fn vector(gguf: &mut Gguf, name: &str, length: usize) -> Result<Vec<f32>> {
    let tensor = gguf.tensor(name)?;
    if tensor.shape().dims() != [length] {
        let shape = tensor.shape().dims();
        return Err(gguf.malformed(format!("`{name}` has shape {shape:?}, not [{length}]")));
    }
    floats(&tensor)
}

/// The dot product, in an order that depends on the length alone.
///
/// Sixteen partial sums, so that compilers make vectors of them; multiply and add are rounded apart, so
/// that every machine agrees.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<16>();
    let (b_lanes, b_rest) = b.as_chunks::<16>();
    let mut sums = [0.0_f32; 16];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    a_rest.iter().zip(b_rest).fold(sums[0], |sum, (a, b)| sum + a * b)
}

fn weight(tensor: QTensor) -> Result<Weight> {
    use GgmlDType::{BF16, F16, F32, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1};
    Ok(match tensor.dtype() {
        F32 | F16 | BF16 => Weight::Full(floats(&tensor)?),
        Q4_1 | Q5_0 | Q5_1 | Q8_1 => {
            Weight::Quantised(QTensor::quantize(&tensor.dequantize(&Device::Cpu)?, Q8_0)?)
        }
        _ => Weight::Quantised(tensor),
    })
}

fn floats(tensor: &QTensor) -> Result<Vec<f32>> {
    let tensor = tensor.dequantize(&Device::Cpu)?;
    tensor.flatten_all().and_then(|tensor| tensor.to_vec1()).map_err(Error::from)
}

/// Products of the same weight row with all activation rows follow each other, so the weights, which are
/// large, are read once.
fn full_product(weight: &[f32], rows: &Rows, outputs: usize) -> Vec<f32> {
    let column = |weight: &[f32]| -> Vec<f32> {
        rows.values().chunks_exact(rows.width).map(|row| dot(weight, row)).collect()
    };
    let columns: Vec<Vec<f32>> = weight.par_chunks_exact(rows.width).with_min_len(64).map(column).collect();
    let mut product = Vec::with_capacity(rows.count * outputs);
    for row in 0..rows.count {
        product.extend(columns.iter().map(|column| column[row]));
    }
    product
}
