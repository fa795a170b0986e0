//! A weight matrix and its product with rows of activations.
//!
//! Three kinds, by what the file holds:
//!
//! - Q8_0, and Q4_1, Q5_0, Q5_1, Q8_1, which become Q8_0 at set-up: candle has no SIMD kernel for those four,
//!   so this is several times faster, at the price of rounding each weight once more by at most 1/254 of the
//!   largest in its block of 32. Multiplied by candle's dot product.
//! - F32, and F16 and BF16, which become f32, exactly. Multiplied by [`dot`].
//! - The others, Q4_0 and the K-quants, by candle's matrix product as they are.
//!
//! Every output is one dot product in an order that never depends on threads. In the first two kinds the
//! threads are rayon's and nothing depends on the number of rows either. Candle's matrix product has threads
//! of its own that wait by spinning (`CANDLE_NUM_THREADS` sets their number: on a busy machine 1 is best).
//! For Q6_K, for Q4_K with AMX, and for all of these types off x86, it has another kernel for many rows than
//! for one, whose sums may be rounded differently. Up to [`ROWS_LIKE_ONE`] rows are therefore multiplied one
//! by one where these kernels differ.

use candle_core::quantized::k_quants::{BlockQ8_0, GgmlType};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CpuStorage, CustomOp1, Device, Layout};
use rayon::prelude::*;

use super::error::{Error, Result};
use super::gguf::Gguf;

/// Multiplications that one thread should have at least.
const WORTH_A_THREAD: usize = 1 << 18;

/// The most rows of one product that have the same bits as products of one row each, for weights of every
/// type. From 18 rows of Q4_K on, candle takes another kernel.
pub const ROWS_LIKE_ONE: usize = 17;

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
    Eights(Vec<BlockQ8_0>),
    Full(Vec<f32>),
    Other(QTensor),
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

    /// The bias, if there is one.
    pub(super) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// The product with every row: `[rows, inputs] -> [rows, outputs]`.
    pub(super) fn apply(&self, rows: &Rows) -> Result<Vec<f32>> {
        assert_eq!(rows.width, self.inputs, "activations do not fit the matrix");
        let mut product = match &self.weight {
            Weight::Eights(weight) => {
                let blocks = self.inputs / BlockQ8_0::BLCK_SIZE;
                let mut quantised = vec![BlockQ8_0::zeros(); rows.count * blocks];
                BlockQ8_0::from_float(rows.values(), &mut quantised);
                self.products(rows.count, |output, row| {
                    let weight = &weight[output * blocks..][..blocks];
                    BlockQ8_0::vec_dot(self.inputs, weight, &quantised[row * blocks..][..blocks])
                })
            }
            Weight::Full(weight) => self.products(rows.count, |output, row| {
                let weight = &weight[output * self.inputs..][..self.inputs];
                dot(weight, &rows.values()[row * self.inputs..][..self.inputs])
            }),
            Weight::Other(weight) => {
                let is_few = (2..=ROWS_LIKE_ONE).contains(&rows.count);
                if is_few && (!cfg!(target_arch = "x86_64") || weight.dtype() == GgmlDType::Q6K) {
                    let each = rows.values().chunks_exact(rows.width);
                    let each = each.map(|row| by_candle(weight, &Rows::new(row.to_vec(), rows.width)));
                    each.collect::<Result<Vec<_>>>()?.concat()
                } else {
                    by_candle(weight, rows)?
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
            Weight::Eights(weight) => {
                let blocks = self.inputs / BlockQ8_0::BLCK_SIZE;
                let mut gathered = vec![0.0; indices.len() * self.inputs];
                for (&index, row) in indices.iter().zip(gathered.chunks_exact_mut(self.inputs)) {
                    BlockQ8_0::to_float(&weight[index as usize * blocks..][..blocks], row);
                }
                Ok(gathered)
            }
            Weight::Full(weight) => {
                let row = |&index: &u32| &weight[index as usize * self.inputs..][..self.inputs];
                Ok(indices.iter().flat_map(row).copied().collect())
            }
            Weight::Other(weight) => {
                let indices = candle_core::Tensor::new(indices, &Device::Cpu)?;
                Ok(weight.embedding(&indices)?.flatten_all()?.to_vec1()?)
            }
        }
    }

    /// The whole matrix as f32, `[outputs, inputs]`.
    pub(super) fn dequantise(&self) -> Result<Vec<f32>> {
        match &self.weight {
            Weight::Eights(weight) => {
                let mut matrix = vec![0.0; self.outputs * self.inputs];
                BlockQ8_0::to_float(weight, &mut matrix);
                Ok(matrix)
            }
            Weight::Full(weight) => Ok(weight.clone()),
            Weight::Other(weight) => floats(weight),
        }
    }

    /// `product(output, row)` for all outputs of all rows, `[rows, outputs]`.
    ///
    /// Products of one output with all rows follow each other, so that the weights, which are large, are
    /// read once.
    fn products(&self, rows: usize, product: impl Fn(usize, usize) -> f32 + Sync) -> Vec<f32> {
        let column = |output: usize| (0..rows).map(move |row| (output, row));
        let outputs_a_thread = WORTH_A_THREAD.div_ceil(self.inputs * rows);
        let columns: Vec<f32> = if self.outputs < 2 * outputs_a_thread {
            (0..self.outputs).flat_map(column).map(|(output, row)| product(output, row)).collect()
        } else {
            let mut columns = vec![0.0; self.outputs * rows];
            let outputs = columns.par_chunks_exact_mut(rows).with_min_len(outputs_a_thread);
            outputs.enumerate().for_each(|(output, column)| {
                column.iter_mut().enumerate().for_each(|(row, value)| *value = product(output, row));
            });
            columns
        };
        if rows == 1 {
            return columns;
        }
        let row = |row: usize| columns.iter().skip(row).step_by(rows).copied();
        (0..rows).flat_map(row).collect()
    }
}

/// Multiplies rows by candle's matrix product.
fn by_candle(weight: &QTensor, rows: &Rows) -> Result<Vec<f32>> {
    let layout = Layout::contiguous((rows.count, rows.width));
    match weight.cpu_fwd(&rows.storage, &layout)?.0 {
        CpuStorage::F32(product) => Ok(product),
        _ => unreachable!("candle multiplies f32 rows into f32"),
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
        dtype @ (Q8_0 | Q4_1 | Q5_0 | Q5_1 | Q8_1) => {
            let floats = floats(&tensor)?;
            let mut eights = vec![BlockQ8_0::zeros(); floats.len() / BlockQ8_0::BLCK_SIZE];
            let pieces = eights.par_chunks_mut(1 << 12).zip(floats.par_chunks(BlockQ8_0::BLCK_SIZE << 12));
            pieces.for_each(|(eights, floats)| BlockQ8_0::from_float(floats, eights));
            // Q8_0 comes back unchanged if each block's largest weight is written 127, as it should be.
            let unchanged = || {
                let mut again = vec![0.0; floats.len()];
                BlockQ8_0::to_float(&eights, &mut again);
                again == floats
            };
            if dtype != Q8_0 || unchanged() { Weight::Eights(eights) } else { Weight::Other(tensor) }
        }
        _ => Weight::Other(tensor),
    })
}

fn floats(tensor: &QTensor) -> Result<Vec<f32>> {
    let tensor = tensor.dequantize(&Device::Cpu)?;
    tensor.flatten_all().and_then(|tensor| tensor.to_vec1()).map_err(Error::from)
}
