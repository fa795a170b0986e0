//! Operators that judge trees of drafts, chains among them, by probabilities, and those that say how likely
//! given tokens are.

use gumball_engine::{
    DeviceIntMatrix, DeviceIntMatrixMut, DraftTreeCounts, DraftTreeRows, DraftTrees as Trees, Dtype as Type,
    Error, HostDraftTrees, Ids, IntType, Judgement, Kind, PerRowMut, VerifyMode,
};

use crate::batch::read_mode;
use crate::drafts::Drafts;
use crate::draws::Draws;
use crate::error::{Code, Failure, Result, refuse};
use crate::ffi::{Caller, VerifyModeNumber, call, device_address, require};
use crate::matrix::{Ints, Matrix, Memory, dtype, extent};
use crate::operands::{HERE, kind};
use crate::operators::Operators;
use crate::rows::Rows;

/// Where the results of T trees of n drafts each are written, in the memory of the operators. A list that is
/// NULL, which `tokens` is not, is not written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// T x (n + 1): the accepted drafts, the token drawn after them, then -1.
    pub tokens: *mut i32,
    /// T x (n + 1): the rows that the tokens come from, then -1.
    pub rows: *mut i32,
    /// T: the number of accepted drafts.
    pub accepted: *mut u32,
    /// T, for chains by GUMBALL_REJECTION with `probs` alone: the number of drafts that would be accepted if
    /// each were judged by itself.
    pub accepted_alone: *mut u32,
    /// T: bits of gumball_status of the rows that the last token was drawn from.
    pub statuses: *mut u32,
}

/// The drafts and rows of a call, whose numbers fit together.
struct Given {
    trees: usize,
    /// The number of drafts in a tree.
    n: usize,
    target: Matrix,
    drafts: Drafts,
    /// The rows of the drafter of each tree, if it has probabilities.
    draft_rows: Option<usize>,
}

impl Given {
    fn new(target: &Rows, drafts: Drafts, trees: usize, memory: Memory) -> Result<Self> {
        if kind(target)? != Kind::Probabilities {
            return Err(Failure::out_of_range("what", "GUMBALL_LOGITS", "GUMBALL_PROBABILITIES"));
        }
        let links = [
            ("first_child", !drafts.first_child.is_absent()),
            ("next_sibling", !drafts.next_sibling.is_absent()),
        ];
        refuse(links, "operators", "their trees have parents; leave it zero")?;
        let (target, probs) = (target.matrix, drafts.probs);
        let n = drafts.ids.rows.checked_div(trees).unwrap_or(0);
        let (nodes, rows) = (trees * n, trees.saturating_mul(n.saturating_add(1)));
        let or_none = |is_there: bool, numbers: [usize; 2]| if is_there { numbers } else { [0; 2] };
        let has_probs = drafts.has_probs();
        for (name, length, allowed) in [
            ("ids", drafts.ids.rows, [nodes; 2]),
            ("parents", drafts.parents.rows, or_none(!drafts.parents.is_absent(), [nodes; 2])),
            ("rows", target.rows, [rows; 2]),
            ("probs", probs.rows, or_none(has_probs, [nodes, rows])),
        ] {
            if !allowed.contains(&length) {
                let allowed = format!("{} or {} for {trees} trees of {n} drafts", allowed[0], allowed[1]);
                return Err(Error::length(name, length, allowed).into());
            }
        }
        for (name, matrix) in [("rows", target), ("probs", if has_probs { probs } else { target })] {
            matrix.check_memory(memory, HERE)?;
            let (stride, _) = extent(matrix.rows, matrix.width, matrix.stride)?;
            if dtype(matrix.dtype)? != Type::F32 || stride != matrix.width || stride != target.width {
                let (value, allowed) =
                    (format!("{matrix:?}"), format!("f32 of {} ids without gaps", target.width));
                return Err(Failure::out_of_range(name, value, &allowed));
            }
        }
        for (name, ints) in [("ids", &drafts.ids), ("parents", &drafts.parents)] {
            if !ints.is_absent() {
                ints.check_memory(memory, HERE)?;
                ints.check_list(name)?;
            }
        }
        let draft_rows = has_probs.then(|| probs.rows.checked_div(trees).unwrap_or(n));
        Ok(Self { trees, n, target, drafts, draft_rows })
    }

    fn on_host<'a>(&self, c: Caller<'a>) -> Result<HostDraftTrees<'a>> {
        let Self { trees, n, target, drafts, .. } = self;
        let vocab = target.width;
        let numbers = |name, of: &Matrix| c.slice(name, of.data.cast::<f32>(), of.rows * vocab);
        let ids = |name, ints: &Ints| {
            let Ids::Host(ids) = ints.list(c, name)? else { unreachable!("it lies on the host") };
            Ok::<_, Failure>(ids)
        };
        Ok(HostDraftTrees {
            trees: *trees,
            drafts: *n,
            vocab,
            draft_probs: self.draft_rows.map(|_| numbers("probs", &drafts.probs)).transpose()?,
            draft_token_ids: ids("ids", &drafts.ids)?,
            parents: (!drafts.parents.is_absent()).then(|| ids("parents", &drafts.parents)).transpose()?,
            target_probs: numbers("rows", target)?,
        })
    }

    fn on_device<'a>(&self, _: Caller<'a>, out: &Judged) -> Result<Trees<'a>> {
        let Self { trees, n, target, drafts, .. } = *self;
        let vocab = target.width;
        let rows_of = |name: &'static str, of: &Matrix, rows: usize| {
            let address = device_address(name, of.data, of.rows)?;
            // SAFETY: the C caller ensures that as many f32 lie there, without gaps as `new` found.
            let rows = unsafe { DraftTreeRows::new(address, [trees, rows, vocab], [rows * vocab, vocab]) };
            Ok::<_, Failure>(rows?)
        };
        let ids = |name: &'static str, ints: &Ints| {
            let address = device_address(name, ints.data, ints.rows)?;
            // SAFETY: the C caller ensures that as many integers lie there.
            Ok::<_, Failure>(unsafe { DeviceIntMatrix::new(address, ints.int_type()?, trees, n, n) }?)
        };
        let written = |name: &'static str, first: *mut i32| {
            let address = device_address(name, first.cast_const(), trees)?;
            // SAFETY: the C caller ensures that there is memory for as many i32, which only this work uses.
            Ok::<_, Failure>(unsafe { DeviceIntMatrixMut::new(address, IntType::I32, trees, n + 1, n + 1) }?)
        };
        Ok(Trees::Device {
            draft_probs: self.draft_rows.map(|rows| rows_of("probs", &drafts.probs, rows)).transpose()?,
            draft_token_ids: ids("ids", &drafts.ids)?,
            parents: (!drafts.parents.is_absent()).then(|| ids("parents", &drafts.parents)).transpose()?,
            target_probs: rows_of("rows", &target, n + 1)?,
            tokens: written("tokens", out.tokens)?,
            rows: (!out.rows.is_null()).then(|| written("rows", out.rows)).transpose()?,
        })
    }
}

/// Walks each of T trees of n drafts from its root while a draft is accepted, and draws one more token where
/// the walk ends.
///
/// `rows`: T x (n + 1) of the target's probabilities, float without gaps: row 0 of a tree belongs to its
/// root, row i + 1 to draft i. `drafts`: T x n ids, and `parents` of the same tree. Its `probs` are T x n
/// rows, or T x (n + 1): rows without children are not read, so the one after the last draft never is. Drafts
/// of -1 fill trees of fewer. n is in 0..=64; any number for chains by GUMBALL_REJECTION with `probs`, which
/// are fastest. On a device a tree whose parents are none accepts no draft, and has GUMBALL_STATUS_NO_TREE.
/// `draws`: one output per tree.
///
/// `mode`: GUMBALL_REJECTION, GUMBALL_BLOCK (chains alone) or GUMBALL_THRESHOLD, with thresholds as in
/// gumball_batch. By the first two every emitted token has the distribution of the target's row; thresholds
/// below 1 are biased towards the drafts.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_judge(
    operators: Option<&Operators>,
    rows: *const Rows,
    drafts: *const Drafts,
    draws: *const Draws,
    mode: VerifyModeNumber,
    threshold_single: f32,
    threshold_acc: f32,
    out: *const Judged,
) -> Code {
    call(|c| {
        let operators = require("operators", operators)?;
        let arrays = operators.arrays(c);
        let judgement = match read_mode(mode, threshold_single, threshold_acc)? {
            VerifyMode::Rejection => Judgement::Rejection,
            VerifyMode::Block => Judgement::Block,
            VerifyMode::Threshold { single, acc } => Judgement::Threshold { single, acc },
            _ => {
                let allowed = "GUMBALL_REJECTION, GUMBALL_BLOCK or GUMBALL_THRESHOLD";
                return Err(Failure::out_of_range("mode", mode, allowed));
            }
        };
        let target = c.plain("rows", rows)?;
        let drafts = c.read("drafts", drafts)?;
        let draws = c.read("draws", draws)?;
        let out = c.plain("out", out)?;
        draws.check_one_per("draft trees")?;
        let count = draws.outputs;
        let given = Given::new(&target, drafts, count, arrays.memory)?;
        let keys = draws.keys(arrays)?;
        let mut accepted = arrays.out("accepted", out.accepted, count)?;
        let mut alone = arrays.out("accepted_alone", out.accepted_alone, count)?;
        let mut statuses = arrays.out("statuses", out.statuses.cast(), count)?;
        let counts = DraftTreeCounts {
            accepted: accepted.column(),
            accepted_alone: alone.column(),
            statuses: statuses.column(),
            adds: false,
        };
        if arrays.memory == Memory::GUMBALL_DEVICE {
            let batch = given.on_device(c, &out)?;
            return Ok(operators.inner.judge(batch, judgement, &keys, counts)?);
        }
        let trees = given.on_host(c)?;
        let mut tokens = arrays.required::<i32>("tokens", out.tokens, target.matrix.rows)?;
        let mut rows = arrays.out::<i32>("rows", out.rows, target.matrix.rows)?;
        let written = |column| match column {
            Some(PerRowMut::Host(written)) => Some(written),
            None => None,
            Some(_) => unreachable!("it lies on the host"),
        };
        let tokens_here = written(tokens.column()).expect("it is required");
        let batch = Trees::Host { trees, tokens: tokens_here, rows: written(rows.column()) };
        operators.inner.judge(batch, judgement, &keys, counts)?;
        tokens.finish();
        rows.finish();
        accepted.finish();
        alone.finish();
        statuses.finish();
        Ok(())
    })
}

/// Writes how likely one token of each row is: its logprob and its rank, as a step reports them of a forced
/// token in the mode "raw".
///
/// `tokens`: one for each row, -1 for none. `logprobs`: memory for a float for each row: ln, -inf for none.
/// `ranks` and `statuses`: NULL, or memory for a word for each row: 1 for the most likely token, 0 for none.
/// On a device an id outside the vocabulary is none, with GUMBALL_STATUS_NO_ID.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_selected_logprobs(
    operators: Option<&Operators>,
    logits: *const Rows,
    tokens: *const i32,
    logprobs: *mut f32,
    ranks: *mut u32,
    statuses: *mut u32,
) -> Code {
    call(|c| {
        let operators = require("operators", operators)?;
        let arrays = operators.arrays(c);
        let (rows, count) = arrays.rows(logits)?;
        let tokens = require("tokens", arrays.per_row("tokens", tokens, count)?)?;
        let mut logprobs = arrays.required::<f32>("logprobs", logprobs, count)?;
        let mut ranks = arrays.out("ranks", ranks, count)?;
        let mut statuses = arrays.out("statuses", statuses.cast(), count)?;
        let written = logprobs.column().expect("it is required");
        operators.inner.selected_logprobs(rows, tokens, written, ranks.column(), statuses.column())?;
        logprobs.finish();
        ranks.finish();
        statuses.finish();
        Ok(())
    })
}
