//! Loops: where one is found (B4), and what ends it (B5).

use std::collections::HashMap;

use gumball_spec::section::repeats;
use gumball_spec::{Error, Loops, NONE, SamplingParams, Section, Status};

use crate::case::{Case, Logits};
use crate::drafted::Drafted;
use crate::rules::Check;

rules!(loop_rules:
    B4 a_loop_has_copies_and_tokens_enough,
    B4 a_loop_is_looked_for_where_every_divides_the_output,
    B4 a_loop_lies_in_the_output,
    B4 a_period_lies_between_the_least_and_the_largest,
    B4 the_last_copy_of_a_period_need_not_be_whole,
    B4 ten_loops_are_found_and_ten_texts_that_repeat_are_not,
    B5 a_loop_without_an_end_is_told_where_it_is_found,
    B5 a_loop_forces_its_end_one_by_one_and_once,
    B5 a_loop_is_found_anew_in_the_tokens_behind_its_end,
    B5 a_loop_closes_the_section_that_it_lies_in,
    B5 a_section_that_a_loop_closes_has_no_least_length,
    B5 a_spent_section_is_no_loop_and_waits_for_the_end_of_one,
    B5 a_loops_end_is_emitted_though_forbidden_and_its_status_says_so,
    B5 the_callers_forced_token_comes_before_a_loops_end,
    B5 a_loops_end_is_the_only_draft_of_its_row,
    B5 drafts_go_through_loops_as_decoding_does,
    B5 loops_refuse_drafts_that_are_judged_by_probabilities,
);

/// The token that a row of [`ten`] draws.
const DRAWN: i32 = 9;

const LOOP: u32 = Status::LOOP.0;

/// Loops of any period up to 3, in two copies, looked for at each row.
fn short(end: &[u32]) -> Loops {
    Loops { max_period: 3, min_copies: 2, min_tokens: 4, every: 1, end: end.to_vec(), ..Loops::default() }
}

/// Returns a case of ten tokens, the last of which is drawn unless another one is forced.
fn ten(loops: Loops) -> Case {
    let mut row = [0.0; 10];
    row[DRAWN as usize] = 50.0;
    Case::of(&row, SamplingParams { loops: Some(loops), ..SamplingParams::default() })
}

/// Returns the same where sections begin behind 1, end behind 2, and have a budget.
fn ten_in_section(loops: Loops, end: &[u32], budget: u32) -> Case {
    let mut case = ten(loops);
    let (open, close, end) = (vec![1], vec![2], end.to_vec());
    case.params.section = Some(Section { open, close, end, budget, min: 0 });
    case
}

/// A prompt and an output, and what comes after them: the forced token, or none, and the row's status.
type After<'a> = (&'a [u32], &'a [u32], Option<u32>, u32);

fn says(check: &Check<'_>, case: &Case, texts: &[After<'_>]) {
    for (prompt, output, forced, status) in texts {
        let seen = check.sees(&case.clone().after(prompt, output));
        let expected = (forced.map_or(DRAWN, |id| id as i32), *status);
        assert_eq!(
            (seen.token, seen.status.0),
            expected,
            "{:?} after {prompt:?} and {output:?}",
            case.params
        );
    }
}

/// Holds whether outputs are loops.
fn finds(check: &Check<'_>, loops: &Loops, outputs: &[(&[u32], bool)]) {
    for (output, is_loop) in outputs {
        says(check, &ten(loops.clone()), &[(&[], output, None, if *is_loop { LOOP } else { 0 })]);
    }
}

fn a_loop_has_copies_and_tokens_enough(check: &Check<'_>) {
    finds(
        check,
        &short(&[]),
        &[
            (&[], false),
            (&[3, 3, 3], false),
            (&[3, 3, 3, 3], true),
            (&[8, 3, 3, 3], false),
            (&[3, 4, 3, 4], true),
            (&[4, 3, 4], false),
            (&[3, 4, 5, 3, 4], false),
            (&[3, 4, 5, 3, 4, 5], true),
            (&[3, 4, 5, 6, 3, 4, 5, 6], false),
            (&[5000, u32::MAX, 5000, u32::MAX], true),
        ],
    );
    finds(
        check,
        &Loops { min_copies: 3, min_tokens: 0, ..short(&[]) },
        &[(&[3, 3], false), (&[3, 3, 3], true), (&[3, 4, 3, 4], false), (&[3, 4, 3, 4, 3, 4], true)],
    );
    finds(check, &Loops { min_tokens: 7, ..short(&[]) }, &[(&[3; 6], false), (&[3; 7], true)]);
    // Over several warps of tokens.
    let long = Loops { max_period: 128, min_copies: 3, min_tokens: 0, ..short(&[]) };
    for period in [1u32, 31, 32, 33, 127, 128] {
        let text: Vec<u32> = (0..3 * period).map(|i| 10 + i % period).collect();
        finds(check, &long, &[(&text, true), (&text[1..], period == 1 && text.len() > 3)]);
        let mut wrong = text.clone();
        wrong[0] = 5;
        finds(check, &long, &[(&wrong, false)]);
    }
}

fn a_loop_is_looked_for_where_every_divides_the_output(check: &Check<'_>) {
    let of = Loops { every: 4, min_tokens: 3, ..short(&[]) };
    for (output, is_loop) in [(3, false), (4, true), (5, false), (7, false), (8, true)] {
        finds(check, &of, &[(&vec![3; output], is_loop)]);
    }
    // The prompt does not count.
    says(check, &ten(of), &[(&[7; 3], &[3; 4], None, LOOP), (&[7; 2], &[3; 6], None, 0)]);
}

fn a_loop_lies_in_the_output(check: &Check<'_>) {
    let case = ten(short(&[5]));
    says(
        check,
        &case,
        &[
            (&[3; 9], &[], None, 0),
            (&[3; 9], &[3; 3], None, 0),
            (&[3; 9], &[3; 4], Some(5), LOOP),
            (&[3, 4], &[3, 4], None, 0),
        ],
    );
}

fn a_period_lies_between_the_least_and_the_largest(check: &Check<'_>) {
    let of = Loops { min_period: 2, max_period: 2, ..short(&[]) };
    finds(check, &of, &[(&[3, 4, 3, 4], true), (&[4, 3, 5, 4, 3, 5], false)]);
    // A multiple of a period is one, too.
    finds(check, &of, &[(&[3; 4], true)]);
    finds(check, &Loops { min_period: 3, max_period: 3, ..of }, &[(&[3; 5], false), (&[3; 6], true)]);
}

fn the_last_copy_of_a_period_need_not_be_whole(check: &Check<'_>) {
    let of = Loops { min_tokens: 7, ..short(&[]) };
    finds(
        check,
        &of,
        &[(&[3, 4, 5, 3, 4, 5, 3], true), (&[4, 5, 3, 4, 5, 3, 4], true), (&[3, 4, 5, 3, 4, 5, 4], false)],
    );
}

/// Returns words, signs and line ends as ids, numbered as they come first.
fn ids(text: &str) -> Vec<u32> {
    let mut known = HashMap::new();
    let mut word = String::new();
    let mut ids = Vec::new();
    for letter in text.chars().chain(['\n']) {
        let goes_on = letter.is_alphanumeric() && word.trim_start().chars().all(char::is_alphanumeric);
        if !goes_on && !word.is_empty() {
            let next = known.len() as u32;
            ids.push(*known.entry(std::mem::take(&mut word)).or_insert(next));
        }
        word.push(letter);
    }
    ids
}

/// Returns a text of words that do not repeat.
fn thoughts(words: usize) -> String {
    (0..words).map(|n| format!(" w{n}x{}", n * n % 97)).collect()
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|n| line(n) + "\n").collect()
}

/// Ten outputs that go round and round, of the kinds that are reported, each behind a beginning of its own.
fn loops() -> [String; 10] {
    let paragraph = thoughts(110) + ".\n\n";
    [
        thoughts(40) + &"!".repeat(900),
        thoughts(17) + &" ha, ha".repeat(300),
        thoughts(90) + &" Wait, let me check that once more.".repeat(80),
        thoughts(33) + &"So the answer is 4.\n\nBut no, that is wrong: 2 and 2.\n\n".repeat(40),
        paragraph.repeat(8),
        thoughts(8) + &"| --- ".repeat(300),
        thoughts(61) + &"    x = x + 1;\n".repeat(90),
        thoughts(5) + "0." + &"1 4 2 8 5 7 ".repeat(90),
        thoughts(25) + &"\n".repeat(700),
        thoughts(12) + &"{\"name\": \"a\", \"value\": null}, ".repeat(60),
    ]
}

/// Ten outputs that repeat themselves and are none: tables, code, verse.
fn healthy() -> [String; 10] {
    let refrain = "Row on, row on, the night is long,\nthe river knows our only song,\nrow on, row on.\n\n";
    let row = |cells: usize, cell: &str| format!("|{}", format!(" {cell} |").repeat(cells));
    [
        format!("{}\n{}\n", row(24, "x"), row(24, "---")) + &lines(20, |n| row(24, &n.to_string())),
        format!("int m[8][8] = {{\n{}}};\n", lines(8, |_| format!("  {{{}}},", ["0"; 8].join(", ")))),
        lines(8, |_| ". ".repeat(8)) + "White is to move; which piece stands where?",
        lines(12, |n| format!("{}\n\n{refrain}", thoughts(20 + n))),
        lines(6, |n| format!("la la la la, {}\n{}", thoughts(3 + n), "na, na, na, ".repeat(14))),
        lines(30, |n| format!("    pub fn field{n}(&self) -> u32 {{\n        self.field{n}\n    }}\n")),
        lines(25, |_| "0,0,0,0".to_owned()) + &lines(60, |n| format!("{n},{},0,0", n % 3)),
        format!("+{}+\n{}+{}+\n", "-".repeat(120), lines(9, |n| format!("| {n} |")), "=".repeat(120)),
        lines(40, |n| format!("{:04}: {}", 16 * n, "00 ".repeat(16))),
        lines(20, |n| format!("{}<div>", "  ".repeat(n)))
            + &lines(20, |n| format!("{}</div>", "  ".repeat(19 - n)))
            + &lines(3, |_| format!("<td>{}</td>", "&nbsp;".repeat(40))),
    ]
}

fn ten_loops_are_found_and_ten_texts_that_repeat_are_not(check: &Check<'_>) {
    let of = Loops::default();
    let case = ten(of.clone());
    let rows = |output: &[u32]| (1..=output.len() / 16).map(|n| 16 * n).collect::<Vec<usize>>();
    for text in loops() {
        let output = ids(&text);
        let row = rows(&output).into_iter().find(|row| repeats(&of, &output[..*row]));
        let row = row.unwrap_or_else(|| panic!("no loop in {text:?}"));
        says(check, &case, &[(&[], &output[..row], None, LOOP), (&[], &output[..row - 16], None, 0)]);
        // No loop is found long after it has begun: 256 tokens, or four copies, and those up to the next row.
        let begun =
            (0..row).rev().find(|i| !(1..=128.min(*i)).any(|p| output[*i] == output[*i - p])).unwrap_or(0);
        assert!(row - begun <= 4 * 128 + 16 + 128, "{row} of a loop that begins at {begun} in {text:?}");
    }
    for text in healthy() {
        let output = ids(&text);
        let found = rows(&output).into_iter().find(|row| repeats(&of, &output[..*row]));
        assert_eq!(found, None, "{text}");
        says(check, &case, &[(&[], &output[..output.len() / 16 * 16], None, 0)]);
    }
}

fn a_loop_without_an_end_is_told_where_it_is_found(check: &Check<'_>) {
    let case = ten(short(&[]));
    says(
        check,
        &case,
        &[
            (&[], &[3; 4], None, LOOP),
            // Tokens that were told of are none of the next loop.
            (&[], &[3; 5], None, 0),
            (&[], &[3; 7], None, 0),
            (&[], &[3; 8], None, LOOP),
            (&[], &[3, 3, 3, 3, 8, 3, 3, 3, 3], None, LOOP),
        ],
    );
    // Nothing is forced, in an empty row neither.
    let empty = Case { logits: Logits::new(crate::case::Dtype::F32, &[f32::NEG_INFINITY; 10]), ..case };
    let seen = check.sees(&empty.after(&[], &[3; 4]));
    assert_eq!((seen.token, seen.status.0), (NONE, LOOP | Status::EMPTY.0));
}

fn a_loop_forces_its_end_one_by_one_and_once(check: &Check<'_>) {
    let case = ten(short(&[5, 6, 5]));
    says(
        check,
        &case,
        &[
            (&[], &[3; 3], None, 0),
            (&[], &[3; 4], Some(5), LOOP),
            (&[], &[3, 3, 3, 3, 5], Some(6), LOOP),
            (&[], &[3, 3, 3, 3, 5, 6], Some(5), LOOP),
            (&[], &[3, 3, 3, 3, 5, 6, 5], None, 0),
            (&[], &[3, 3, 3, 3, 5, 6, 5, 3, 3], None, 0),
            // Each id has its place, whatever stands in the others.
            (&[], &[3, 3, 3, 3, 8, 8], Some(5), LOOP),
            (&[], &[3, 3, 3, 3, 3, 3], Some(5), LOOP),
        ],
    );
    // An end that is a loop itself is none.
    let case = ten(short(&[7; 9]));
    let mut output = vec![3; 4];
    for _ in 0..9 {
        says(check, &case, &[(&[], &output, Some(7), LOOP)]);
        output.push(7);
    }
    says(check, &case, &[(&[], &output, None, 0)]);
}

fn a_loop_is_found_anew_in_the_tokens_behind_its_end(check: &Check<'_>) {
    let case = ten(short(&[5]));
    says(
        check,
        &case,
        &[
            (&[], &[3, 3, 3, 3, 5, 3, 3, 3], None, 0),
            (&[], &[3, 3, 3, 3, 5, 3, 3, 3, 3], Some(5), LOOP),
            (&[], &[3, 3, 3, 3, 5, 3, 3, 3, 3, 5], None, 0),
            (&[], &[3, 3, 3, 3, 5, 5, 5, 5], None, 0),
            (&[], &[3, 3, 3, 3, 5, 5, 5, 5, 5], Some(5), LOOP),
        ],
    );
}

fn a_loop_closes_the_section_that_it_lies_in(check: &Check<'_>) {
    let both = LOOP | Status::SECTION.0;
    let case = ten_in_section(Loops { close: true, ..short(&[]) }, &[6, 2], u32::MAX);
    says(
        check,
        &case,
        &[
            (&[], &[3; 9], None, 0),
            (&[1], &[3; 3], None, 0),
            (&[1], &[3; 4], Some(6), both),
            (&[1], &[3, 3, 3, 3, 6], Some(2), both),
            (&[1], &[3, 3, 3, 3, 6, 2], None, 0),
            (&[1], &[3, 3, 3, 3, 6, 2, 3, 3, 3, 3], None, 0),
            // As at the end of a budget, what is begun goes on, and begins again after another token.
            (&[1], &[3, 3, 3, 3, 6, 8], Some(6), both),
            (&[1], &[8, 3, 6, 3, 6], Some(2), both),
            // A natural close ends it, and the next section is as the first.
            (&[1], &[3, 3, 3, 3, 2], None, 0),
            (&[1], &[3, 3, 3, 3, 2, 1, 3, 3, 3], None, 0),
            (&[1], &[3, 3, 3, 3, 2, 1, 3, 3, 3, 3], Some(6), both),
            // Only the section's tokens count, of which those of the prompt are none of the output.
            (&[], &[3, 3, 1, 3, 3], None, 0),
            (&[1, 3, 3], &[3, 3], None, 0),
            (&[1, 3, 3], &[3, 3, 3, 3], Some(6), both),
        ],
    );
    // A close inside the forced ids does not end them, but one that is not forced does.
    let case = ten_in_section(Loops { close: true, ..short(&[]) }, &[6, 2, 7], u32::MAX);
    says(
        check,
        &case,
        &[(&[1], &[3, 3, 3, 3, 6, 2], Some(7), both), (&[1], &[3, 3, 3, 3, 6, 2, 7], None, 0)],
    );
    // A budget that is used up besides changes nothing.
    let case = ten_in_section(Loops { close: true, ..short(&[]) }, &[], 4);
    says(check, &case, &[(&[1], &[3; 4], Some(2), Status::SECTION.0), (&[1], &[8; 3], None, 0)]);
    let case = ten_in_section(Loops { close: true, ..short(&[]) }, &[], 5);
    says(check, &case, &[(&[1], &[3; 4], Some(2), both), (&[1], &[3; 5], Some(2), both)]);
}

fn a_section_that_a_loop_closes_has_no_least_length(check: &Check<'_>) {
    let mut case = ten_in_section(Loops { close: true, ..short(&[]) }, &[], 20);
    if let Some(section) = &mut case.params.section {
        section.min = 9;
    }
    let both = LOOP | Status::SECTION.0;
    says(check, &case, &[(&[1], &[3; 4], Some(2), both)]);
    case.logits = Logits::new(crate::case::Dtype::F32, &[1.0; 10]);
    check.keeps(&case.after(&[1], &[3; 3]), &[0, 1, 3, 4, 5, 6, 7, 8, 9]);
}

fn a_spent_section_is_no_loop_and_waits_for_the_end_of_one(check: &Check<'_>) {
    let of = Status::SECTION.0;
    let case = ten_in_section(short(&[5, 5]), &[6, 7, 2], 4);
    says(
        check,
        &case,
        &[
            (&[1], &[3; 4], Some(6), of),
            (&[1, 8], &[3; 4], Some(6), of),
            // The end of the loop comes first; it counts as tokens of the section.
            (&[], &[3, 3, 3, 3], Some(5), LOOP),
            (&[], &[3, 3, 3, 3, 1], Some(5), LOOP),
            (&[], &[3, 3, 3, 3, 1, 5], None, 0),
            (&[], &[3, 3, 3, 3, 5, 1], None, 0),
        ],
    );
    let case = ten_in_section(short(&[5, 5, 6]), &[6, 7, 2], 5);
    says(
        check,
        &case,
        &[
            (&[1], &[3; 4], Some(5), LOOP),
            (&[1], &[3, 3, 3, 3, 5], Some(5), LOOP),
            (&[1], &[3, 3, 3, 3, 5, 5], Some(6), LOOP),
            (&[1], &[3, 3, 3, 3, 5, 5, 6], Some(7), of),
            (&[1], &[3, 3, 3, 3, 5, 5, 6, 7], Some(2), of),
            (&[1], &[3, 3, 3, 3, 5, 5, 6, 7, 2], None, 0),
        ],
    );
}

fn a_loops_end_is_emitted_though_forbidden_and_its_status_says_so(check: &Check<'_>) {
    let both = LOOP | Status::FORBIDDEN.0;
    let found = ten(short(&[3, 4])).after(&[], &[8; 4]);
    let holds = |case: &Case, status: u32| {
        let seen = check.sees(case);
        assert_eq!((seen.token, seen.status.0), (3, status), "{case:?}");
    };
    let with = |change: fn(&mut SamplingParams)| {
        let mut case = found.clone();
        change(&mut case.params);
        case
    };
    holds(&found, LOOP);
    holds(&with(|params| params.banned_ids = vec![4]), LOOP);
    holds(&with(|params| params.banned_ids = vec![3]), both);
    holds(&with(|params| (params.min_tokens, params.stop_ids) = (5, vec![3])), both);
    holds(&with(|params| params.temperature = 0.0), LOOP);
    holds(&Case { mask: Some(vec![1 << 9]), ..found.clone() }, both);
    holds(&Case { mask: Some(vec![]), ..found.clone() }, both);
    // A section whose least length bans the id.
    let mut case = ten_in_section(short(&[2]), &[], 20).after(&[1], &[8; 4]);
    if let Some(section) = &mut case.params.section {
        section.min = 9;
    }
    let seen = check.sees(&case);
    assert_eq!((seen.token, seen.status.0), (2, both));
}

fn the_callers_forced_token_comes_before_a_loops_end(check: &Check<'_>) {
    for end in [&[5, 6][..], &[]] {
        let case = ten(short(end)).after(&[], &[3; 4]);
        let seen = check.sees(&Case { forced: Some(7), ..case });
        assert_eq!((seen.token, seen.status), (7, Status::FORCED));
    }
    // Its place in the end is lost.
    says(check, &ten(short(&[5, 6])), &[(&[], &[3, 3, 3, 3, 7], Some(6), LOOP)]);
}

fn a_loops_end_is_the_only_draft_of_its_row(check: &Check<'_>) {
    use gumball_spec::verify::draft::DraftWords::Position;
    let case = ten(short(&[5, 6])).after(&[], &[3; 4]);
    assert_eq!(check.drafts(&case, Position, 2), Ok(vec![5, NONE]));
    assert_eq!(check.drafts(&case.after(&[], &[3; 3]), Position, 1), Ok(vec![DRAWN]));
}

/// A chain of drafts with a row of ten tokens behind each.
fn chain(root: Case, drafts: &[i32]) -> Drafted {
    let row = root.logits.clone();
    Drafted::chain(root, drafts.iter().map(|draft| (*draft, row.clone())).collect::<Vec<_>>())
}

fn drafts_go_through_loops_as_decoding_does(check: &Check<'_>) {
    let root = ten(short(&[5, 6])).after(&[3], &[9, 9, 9]).at(7, 4);
    // One more 9 makes the loop; then its end comes, and then tokens are drawn again.
    check.walks_to(&chain(root.clone(), &[9, 5, 6, 9]), &[0, 1, 2, 3, 4], &[9, 5, 6, 9, 9]);
    check.walks_to(&chain(root.clone(), &[9, 9, 9]), &[0, 1], &[9, 5]);
    check.walks_to(&chain(root.clone(), &[9, 5, 9]), &[0, 1, 2], &[9, 5, 6]);
    let statuses = |drafted: &Drafted| -> Vec<u32> {
        check.walks(drafted).iter().map(|(_, seen)| seen.status.0).collect()
    };
    assert_eq!(statuses(&chain(root.clone(), &[9, 5, 6])), [0, LOOP, LOOP, 0]);
    // Siblings have places of their own.
    let mut tree = chain(root.clone(), &[9, 8, 5, 9]);
    for (node, parent) in tree.nodes.iter_mut().zip([-1, -1, 0, 1]) {
        node.parent = parent;
    }
    check.walks_to(&tree, &[0, 1, 3], &[9, 5, 6]);
    tree.root.forced = Some(8);
    check.walks_to(&tree, &[0, 2, 4], &[8, 9, 9]);
    // A stop id that is forced ends the walk.
    let mut stopped = chain(root, &[9, 5, 6, 9]);
    stopped.root.params.stop_ids = vec![6];
    check.walks_to(&stopped, &[0, 1, 2], &[9, 5, 6]);
    // Loops that are only told, and those that close a section, along a path.
    let told = chain(ten(Loops { every: 2, ..short(&[]) }).after(&[], &[9, 9, 9]).at(7, 3), &[9; 6]);
    assert_eq!(statuses(&told), [0, LOOP, 0, 0, 0, LOOP, 0]);
    let closed = ten_in_section(Loops { close: true, ..short(&[]) }, &[6, 2], u32::MAX);
    let closed = chain(closed.after(&[1], &[9, 9, 9]).at(7, 4), &[9, 6, 2, 9]);
    check.walks_to(&closed, &[0, 1, 2, 3, 4], &[9, 6, 2, 9, 9]);
    let both = LOOP | Status::SECTION.0;
    assert_eq!(statuses(&closed), [0, both, both, 0, 0]);
}

fn loops_refuse_drafts_that_are_judged_by_probabilities(check: &Check<'_>) {
    use gumball_spec::verify::by_probabilities::Judgement;
    let mut drafted = chain(ten(short(&[])).at(7, 0), &[9]);
    drafted.judgement = Some(Judgement::Rejection);
    let error = check.attempts(&drafted).expect_err("loops");
    assert!(matches!(error, Error::Conflict { parameter: "loops", .. }), "{error}");
}
