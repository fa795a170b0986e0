//! What a row is written as, many draws from it, and chains of drafts, against the oracle.

use gumball_cpu::{Draw, Level, Output, RowMut, Task, Workspace};
use gumball_spec::oracle::{self, Outcome};
use gumball_spec::verify::DraftChain;
use gumball_spec::{Request, Row};
use half::{bf16, f16};

use crate::cases::{Dice, probabilities};

/// The bits of a row, each in the type it has.
fn bits(row: &RowMut<'_>) -> Vec<u32> {
    match row.as_row() {
        Row::F32(row) => row.iter().map(|x| x.to_bits()).collect(),
        Row::Bf16(row) => row.iter().map(|x| x.to_bits().into()).collect(),
        Row::F16(row) => row.iter().map(|x| x.to_bits().into()).collect(),
    }
}

/// Holds what a workspace writes, in every type, beside the row and in its place, and what it draws.
pub fn hold(
    workspace: &mut Workspace,
    row: Row<'_>,
    task: &Task<'_>,
    request: &Request<'_>,
    want: &Outcome,
    what: &str,
) {
    for output in [Output::Probabilities, Output::Masked] {
        let what = format!("{output:?}: {what}");
        let values = if output == Output::Masked { want.masked() } else { want.probabilities() };
        let mut f = vec![f32::NAN; values.len()];
        let mut b: Vec<bf16> = vec![bf16::NAN; values.len()];
        let mut h: Vec<f16> = vec![f16::NAN; values.len()];
        for mut out in [RowMut::F32(&mut f), RowMut::Bf16(&mut b), RowMut::F16(&mut h)] {
            let again = match &mut out {
                RowMut::F32(out) => RowMut::F32(out),
                RowMut::Bf16(out) => RowMut::Bf16(out),
                RowMut::F16(out) => RowMut::F16(out),
            };
            let written = workspace.write(row, task, None, output, again).unwrap();
            assert_eq!(written.status, want.status, "status: {what}");
            assert_eq!(written.temperature.to_bits(), want.temperature.to_bits(), "temperature: {what}");
            assert_eq!(bits(&out), rounded(&out, &values), "{what}");
        }
        let (mut f, mut b, mut h);
        let mut place = match row {
            Row::F32(row) => {
                f = row.to_vec();
                RowMut::F32(&mut f)
            }
            Row::Bf16(row) => {
                b = row.to_vec();
                RowMut::Bf16(&mut b)
            }
            Row::F16(row) => {
                h = row.to_vec();
                RowMut::F16(&mut h)
            }
        };
        let again = match &mut place {
            RowMut::F32(out) => RowMut::F32(out),
            RowMut::Bf16(out) => RowMut::Bf16(out),
            RowMut::F16(out) => RowMut::F16(out),
        };
        workspace.write_in_place(again, task, output).unwrap();
        assert_eq!(bits(&place), rounded(&place, &values), "in place, {what}");
    }

    let draws = [0, 1, 2, 3].map(|i| Draw {
        seed: request.seed + u64::from(i / 2),
        position: request.position.wrapping_add(i % 3),
        draw: i,
    });
    let mut tokens = [0; 4];
    let status = workspace.sample_many(row, task, &draws, &mut tokens).unwrap();
    assert_eq!(status, want.status, "status of many draws: {what}");
    let wanted = draws.map(|Draw { seed, position, draw }| {
        let request = Request { seed, position, draw, forced: None, ..*request };
        oracle::sample(row, &request, None).unwrap().token
    });
    assert_eq!(tokens, wanted, "many draws: {what}");
}

/// The bits of values in the type of a row.
fn rounded(like: &RowMut<'_>, values: &[f32]) -> Vec<u32> {
    let round = |x: &f32| match like {
        RowMut::F32(_) => x.to_bits(),
        RowMut::Bf16(_) => bf16::from_f32(*x).to_bits().into(),
        RowMut::F16(_) => f16::from_f32(*x).to_bits().into(),
    };
    values.iter().map(round).collect()
}

#[test]
fn chains_are_verified_as_defined() {
    let mut workspaces: Vec<_> =
        Level::available().map(|level| (level, Workspace::new(level).unwrap())).collect();
    let mut ends = [0; 5];
    for case in 0..6000 {
        let dice = &mut Dice(case, 7 << 20);
        let (vocab, n) = (dice.pick(&[1, 2, 15, 16, 17, 255, 256, 257, 700]), dice.below(4));
        let (mut drafts, mut q, mut p) = (vec![], vec![], vec![]);
        for j in 0..=n {
            let row = probabilities(dice, vocab);
            let near = dice.pick(&[0, 0, 1, 2]);
            if j < n {
                q.extend(row.iter().map(|x| match near {
                    0 => *x,
                    1 => x * 1.5,
                    _ => x * dice.unit() * 2.0,
                }));
                let likeliest = (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i32;
                let any = dice.below(vocab) as i32;
                drafts.push(dice.pick(&[any, likeliest, likeliest, -1, vocab as i32]));
            }
            p.extend(row);
        }
        let chain = DraftChain {
            drafts: &drafts,
            draft_probs: &q,
            target_probs: &p,
            vocab,
            seed: dice.0 * 99,
            position: dice.word(),
            draw: dice.below(3) as u32,
        };
        let (want, verified) = chain.verify().unwrap();
        ends[verified.accepted as usize] += 1;
        for (level, workspace) in &mut workspaces {
            let mut tokens = vec![7; n + 1];
            let got = workspace.verify_chain(&chain, &mut tokens).unwrap();
            assert_eq!((&tokens, got), (&want, verified), "case {case}, {level}, vocab {vocab}");
        }
    }
    assert!(ends[..4].iter().all(|count| *count > 50), "chains end everywhere: {ends:?}");
}
