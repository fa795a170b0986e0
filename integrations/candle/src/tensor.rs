//! Tensors as rows: the logits where they lie, without a conversion if they are f32, bf16 or f16.

use candle_core::{CpuStorage, DType, Device, Error, Result, Storage, Tensor};
use gumball_engine::Row;

/// Calls `read` with the row of a tensor.
///
/// Other types are converted to f32, other devices copied from, and strided rows made contiguous.
///
/// # Errors
/// If the tensor is not a single row: a vector, or a vector below leading dimensions of 1.
pub(crate) fn with_row<T>(tensor: &Tensor, read: impl FnOnce(Row<'_>) -> Result<T>) -> Result<T> {
    let dims = tensor.dims();
    if dims.last() != Some(&tensor.elem_count()) {
        return Err(Error::msg(format!("logits has shape {dims:?}, but must be a single row, [vocab]")));
    }
    let tensor = tensor.to_device(&Device::Cpu)?;
    let tensor = match tensor.dtype() {
        DType::F32 | DType::BF16 | DType::F16 => tensor,
        _ => tensor.to_dtype(DType::F32)?,
    };
    let tensor = tensor.flatten_all()?.contiguous()?;

    let (storage, layout) = tensor.storage_and_layout();
    let (start, end) = layout.contiguous_offsets().expect("made contiguous");
    match &*storage {
        Storage::Cpu(CpuStorage::F32(data)) => read(Row::F32(&data[start..end])),
        Storage::Cpu(CpuStorage::BF16(data)) => read(Row::Bf16(&data[start..end])),
        Storage::Cpu(CpuStorage::F16(data)) => read(Row::F16(&data[start..end])),
        _ => unreachable!("made f32, bf16 or f16 on the CPU"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tensor: &Tensor) -> Result<Vec<f32>> {
        with_row(tensor, |row| Ok(row.logits()))
    }

    #[test]
    fn rows_are_read_in_any_type_and_layout() {
        let data = Tensor::new(&[[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap();
        assert_eq!(read(&data.get(1).unwrap()).unwrap(), [4.0, 5.0, 6.0]);
        assert_eq!(read(&data.narrow(0, 1, 1).unwrap()).unwrap(), [4.0, 5.0, 6.0], "[1, vocab]");
        let column = data.t().unwrap().get(2).unwrap();
        assert_eq!(read(&column).unwrap(), [3.0, 6.0], "strided");
        for dtype in [DType::BF16, DType::F16, DType::F64, DType::U32] {
            assert_eq!(read(&column.to_dtype(dtype).unwrap()).unwrap(), [3.0, 6.0], "{dtype:?}");
        }
    }

    #[test]
    fn types_of_the_engine_are_not_converted() {
        let data = Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        let is = |dtype, expected: fn(&Row<'_>) -> bool| {
            let data = data.to_dtype(dtype).unwrap();
            assert!(with_row(&data, |row| Ok(expected(&row))).unwrap());
        };
        is(DType::F32, |row| matches!(row, Row::F32(_)));
        is(DType::BF16, |row| matches!(row, Row::Bf16(_)));
        is(DType::F16, |row| matches!(row, Row::F16(_)));
    }

    #[test]
    fn several_rows_are_refused() {
        let error = read(&Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("logits has shape [2, 3], but must be a single row"));
        assert!(read(&Tensor::zeros((), DType::F32, &Device::Cpu).unwrap()).is_err());
    }
}
