//! Sizes that callers pass: each is checked against its range, and no product of sizes wraps before memory is
//! allocated.

use std::sync::Arc;

use gumball_cuda::{
    Assignment, Buffer, DeviceIntMatrix, DraftTreeRows, Dtype, InitialState, IntType, MaskRows, Prepared,
    Rows, StepInput, Workspace, WorkspaceLimits,
};
use gumball_spec::layout::Widths;
use gumball_spec::{Error, SamplingParams};

use crate::runtime;

const LIMITS: WorkspaceLimits =
    WorkspaceLimits { vocab: 64, slots: 2, rows: 2, widths: Widths { top_n: 0, ids: 0 }, kept: false };

#[test]
fn a_workspace_of_any_size_is_made_or_refused_in_words() {
    let Some(runtime) = runtime() else { return };
    let most = i32::MAX as usize;
    let wide = |top_n, ids| WorkspaceLimits { widths: Widths { top_n, ids }, ..LIMITS };
    for (limits, message) in [
        (WorkspaceLimits { slots: most + 1, ..LIMITS }, "slots is 2147483648, but must be in 0..2^31"),
        (
            WorkspaceLimits { rows: usize::MAX, ..LIMITS },
            "rows is 18446744073709551615, but must be in 0..2^31",
        ),
        (
            WorkspaceLimits { vocab: 1 << 20, rows: most, ..LIMITS },
            "rows is 2147483647, but must be at most 524287 with a vocabulary of 1048576",
        ),
        (wide(0, 1 << 62), "ids is 4611686018427387904, but must be in 0..=2^20"),
        (wide(1 << 63, 0), "top_n is 9223372036854775808, but must be in 0..=2^20"),
        // Each size is in its range, but their product exceeds the address space.
        (
            WorkspaceLimits { slots: most, ..wide(0, 1 << 20) },
            "no CUDA: alloc failed: no 9007199250546688 bytes",
        ),
        (WorkspaceLimits { rows: most, ..wide(1 << 20, 0) }, "no CUDA: alloc failed: no "),
    ] {
        let error = Workspace::new(Arc::clone(&runtime), limits).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 62] {
        let error = Buffer::zeroed(&runtime, bytes).unwrap_err().to_string();
        assert_eq!(error, format!("alloc failed: no {bytes} bytes"));
    }
}

#[test]
fn rows_that_reach_beyond_the_address_space_are_refused() {
    // SAFETY: no kernel is launched on this memory.
    let rows = |rows, stride| unsafe { Rows::new(1 << 40, Dtype::F32, rows, 8, stride) }.map(drop);
    assert_eq!(rows(3, 8), Ok(()));
    assert!(matches!(rows(1 << 32, 8), Err(Error::Length { parameter: "rows", .. })));
    for stride in [1 << 62, usize::MAX, (u64::MAX >> 3) as usize] {
        assert!(matches!(rows(3, stride), Err(Error::OutOfRange { parameter: "stride", .. })), "{stride}");
    }
    // SAFETY: no kernel is launched on this memory.
    let masks = |width, stride| unsafe { MaskRows::new(1 << 40, 3, width, stride) }.map(drop);
    assert_eq!(masks(0, 0), Ok(()));
    assert!(masks((1 << 15) + 1, 1 << 16).is_err() && masks(2, usize::MAX).is_err());
    // SAFETY: no kernel is launched on this memory.
    let ids =
        |rows, stride| unsafe { DeviceIntMatrix::new(1 << 40, IntType::I64, rows, 2, stride) }.map(drop);
    assert_eq!(ids(3, 2), Ok(()));
    assert!(ids(3, 1 << 60).is_err() && ids(1 << 32, 2).is_err());
    // SAFETY: no kernel is launched on this memory.
    let chains = |shape, strides| unsafe { DraftTreeRows::new(1 << 40, shape, strides) }.map(drop);
    assert_eq!(chains([2, 3, 8], [24, 8]), Ok(()));
    assert!(chains([2, 3, 8], [usize::MAX, 8]).is_err() && chains([2, 3, 8], [24, usize::MAX]).is_err());
    assert!(chains([1 << 32, 1, 1], [1, 1]).is_err());
}

#[test]
fn lines_of_masks_without_words_forbid_every_id() {
    let Some(runtime) = runtime() else { return };
    let mut workspace =
        Workspace::new(Arc::clone(&runtime), WorkspaceLimits { kept: true, ..LIMITS }).unwrap();
    let prepared = Prepared::new(&SamplingParams::default(), LIMITS.vocab).unwrap();
    workspace.admit(0, &prepared, &InitialState::default()).unwrap();
    let logits = Buffer::of(&runtime, &[1.0f32; 64]).unwrap();
    let rows = Rows::of(&logits, Dtype::F32, 0, 1, 64, 64).unwrap();
    workspace.assign(&Assignment { slots: &[0], masks: &[Some(&[])], ..Assignment::default() }).unwrap();
    workspace.enqueue(&workspace.fix(&StepInput::of(&rows)).unwrap()).unwrap();
    let outputs = workspace.results().outputs(1).unwrap();
    assert_eq!((outputs.token(0), outputs.kept(0)), (-1, Some(&[][..])));

    workspace.assign(&Assignment { slots: &[0], ..Assignment::default() }).unwrap();
    // SAFETY: rows of no words may have any address.
    let nowhere = unsafe { MaskRows::new(0, 1, 0, 0) }.unwrap();
    let step = workspace.fix(&StepInput { masks: Some(nowhere), ..StepInput::of(&rows) }).unwrap();
    let graph = workspace.capture(std::slice::from_ref(&step)).unwrap();
    workspace.enqueue(&step).unwrap();
    assert_eq!(workspace.results().outputs(1).unwrap().token(0), -1);
    workspace.replay(&graph).unwrap();
    assert_eq!(workspace.results().outputs(1).unwrap().token(0), -1);
    assert_eq!(workspace.requests().state(0).unwrap().position, 0);
    workspace.enqueue(&workspace.fix(&StepInput::of(&rows)).unwrap()).unwrap();
    assert!(workspace.results().outputs(1).unwrap().token(0) >= 0);
}
