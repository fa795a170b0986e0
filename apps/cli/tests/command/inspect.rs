//! `gumball inspect`: it shows what the oracle does, in the terminal, as JSON and as a page.

use gumball_cli::logits::{Kind, generate};
use gumball_cli::page::{Context, page};
use gumball_cli::trace::{Detail, Trace};
use gumball_spec::{Filter, FilterOrder, Mirostat, Request, Row, SamplingParams, oracle};

use crate::support::{Files, bytes, lines, logits, refuses, succeeds};

const VOCAB: usize = 3000;

/// Settings that together pass every filter and most edits.
fn settings() -> Vec<SamplingParams> {
    let neutral = SamplingParams::default;
    let mut settings = vec![
        neutral(),
        SamplingParams { temperature: 0.0, ..neutral() },
        SamplingParams { temperature: 0.8, top_k: 50, top_p: 0.9, min_p: 0.01, ..neutral() },
        SamplingParams { top_k: 40, top_p: 0.8, order: FilterOrder::Joint, ..neutral() },
        SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.01, top_n_sigma: 3.0, ..neutral() },
        SamplingParams { mirostat: Some(Mirostat { tau: 3.0, eta: 0.1, mu: None }), ..neutral() },
        SamplingParams { adaptive_target: 0.3, min_p: 0.05, ..neutral() },
        SamplingParams {
            top_p: 0.9,
            min_p: 0.02,
            temperature: 1.7,
            temperature_last: true,
            order: FilterOrder::List(vec![Filter::MinP, Filter::TopP]),
            repetition_penalty: 1.5,
            frequency_penalty: 0.3,
            banned_ids: vec![4],
            ..neutral()
        },
    ];
    settings.extend(Filter::ALL.map(Filter::alone));
    settings
}

fn trace(row: Row<'_>, params: &SamplingParams, seed: u64) -> (Trace, oracle::Outcome) {
    let request = Request { output: &[1, 2, 2, 9], position: 4, ..Request::new(params, &[], seed) };
    let outcome = oracle::sample(row, &request, None).unwrap();
    (Trace::of(row, &request, "a row", &|id| Some(format!("<{id}>")), Detail::Full).unwrap(), outcome)
}

#[test]
fn the_trace_ends_where_the_oracle_does() {
    let rows = generate(Kind::ModelLike, 2, VOCAB, 5).unwrap();
    for (row, params) in (0..2).flat_map(|row| settings().into_iter().map(move |params| (row, params))) {
        for seed in 0..3 {
            let (trace, outcome) = trace(rows.row(row), &params, seed);
            let winner = trace.winner.as_ref().expect("a token");
            assert_eq!(winner.id as i32, outcome.token, "{params:?}");
            assert_eq!((trace.kept.first, trace.kept.end), (outcome.kept.start, outcome.kept.end));
            assert_eq!(trace.candidates, outcome.order.len());
            assert_eq!(trace.temperature.in_use, outcome.temperature);
            let listed: Vec<u32> = trace.tokens.iter().map(|token| token.id).collect();
            assert_eq!(listed, outcome.order[..listed.len()]);
        }
    }
}

#[test]
fn a_chain_of_filters_hands_on_what_it_kept_and_ends_at_the_kept_set() {
    let rows = generate(Kind::ModelLike, 1, VOCAB, 8).unwrap();
    for params in settings().into_iter().filter(|params| params.order != FilterOrder::Joint) {
        let (trace, outcome) = trace(rows.row(0), &params, 1);
        let Some(last) = trace.filters.last() else { continue };
        assert_eq!(last.kept, (outcome.kept.start, outcome.kept.end), "{params:?}");
        assert_eq!(trace.filters[0].given, (0, outcome.order.len()));
        for pair in trace.filters.windows(2) {
            assert_eq!(pair[0].kept, pair[1].given);
        }
        for filter in &trace.filters {
            assert!(filter.share > 0.0 && filter.share <= 1.0);
            if let Some(target) = filter.target {
                assert!(filter.share * filter.mass as f64 >= target as f64 * 0.999_999, "{}", filter.name);
            }
        }
    }
}

#[test]
fn masses_add_up_and_the_race_is_won_by_the_best_score_in_an_open_tile() {
    let rows = generate(Kind::Flat, 1, VOCAB, 3).unwrap();
    let (trace, outcome) = trace(rows.row(0), &SamplingParams { top_p: 0.5, ..Default::default() }, 2);
    let whole = trace.curve.last().unwrap();
    assert!((whole.cumulative - 1.0).abs() < 1e-4 && whole.place == VOCAB - 1, "{whole:?}");
    assert!((trace.kept.share - 0.5).abs() < 1e-3);
    let race = trace.race.expect("a race");
    assert_eq!(race.runners, outcome.kept.len());
    assert_eq!(race.leaders[0].id as i32, outcome.token);
    assert_eq!(race.leaders[0].score, Some(race.best));
    assert!(race.leaders.windows(2).all(|pair| pair[0].score >= pair[1].score));
    let open: Vec<u32> =
        race.bounds.iter().filter(|tile| tile.bound >= race.best).map(|tile| tile.tile).collect();
    assert_eq!(open.len(), race.open_tiles);
    assert!(open.contains(&(outcome.token as u32 / 256)));
}

#[test]
fn edits_are_told_apart() {
    let row = logits(VOCAB, 3);
    let edited = settings().into_iter().find(|params| !params.banned_ids.is_empty()).expect("one bans an id");
    let (trace, _) = trace(Row::F32(&row), &edited, 0);
    let names: Vec<_> = trace.edits.steps.iter().map(|step| (step.name, step.changed)).collect();
    // Ids 1, 2 and 9 stand in the history; a logit of 0 is not changed by a factor.
    assert_eq!(names[1..], [("frequency_penalty", 3), ("banned_ids", 1)]);
    assert_eq!((names[0].0, trace.edits.banned), ("repetition_penalty", 1));
}

#[test]
fn whatever_the_temperature_the_page_can_find_the_winner() {
    let rows = generate(Kind::Flat, 1, VOCAB, 4).unwrap();
    for temperature in [0.02, 0.1, 0.5, 1.0, 3.0, 50.0] {
        let (trace, _) = trace(rows.row(0), &SamplingParams { temperature, ..Default::default() }, 6);
        let what_if = trace.what_if.expect("a race");
        let score = |z: f32, ln_arrival: f64| f64::from(z) / f64::from(temperature) - ln_arrival;
        let best = what_if
            .tokens
            .iter()
            .max_by(|a, b| score(a.z, a.ln_arrival).total_cmp(&score(b.z, b.ln_arrival)));
        assert_eq!(best.map(|entry| entry.id), trace.winner.map(|token| token.id), "T = {temperature}");
    }
}

#[test]
fn the_page_is_complete_in_itself_and_safe() {
    let rows = generate(Kind::ModelLike, 1, VOCAB, 5).unwrap();
    for params in settings() {
        let (trace, _) = trace(rows.row(0), &params, 1);
        let context = Context { prompt: "</script><b>".to_owned(), said: "a & b".to_owned() };
        let page = page(&trace, Some(&context));
        for outside in ["src=", "href=", "@import", "url(", "fetch(", "import(", "https:"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // The one address is the name of SVG, which nothing loads.
        assert_eq!(page.matches("http:").count(), page.matches("http://www.w3.org/2000/svg").count());
        assert!(page.contains("&lt;/script&gt;&lt;b&gt;") && !page.contains("<b>"));
        assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2));
        for filter in &trace.filters {
            assert!(
                page.contains(&format!("<span class=\"value\">{}</span>", filter.value)),
                "{}",
                filter.name
            );
        }
    }
}

#[test]
fn the_command_writes_text_json_and_page() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(VOCAB, 4)));
    let args = ["inspect", &row, "--vocab", "3000", "--top-p", "0.9", "--top-k", "100", "--seed", "11"];
    let text = succeeds(&args);
    for part in ["order", "temperature", "top_k 100", "top_p 0.9", "last kept", "tiles", "seed 11", "wins"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");

    let json: serde_json::Value =
        serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).unwrap();
    let sampled = succeeds(&[&["sample"], &args[1..], &["--json"]].concat());
    assert_eq!(json["winner"]["id"], lines(&sampled)[0]["token"]);

    let html = files.path("page.html");
    succeeds(&[&args[..], &["--html", html.to_str().unwrap()]].concat());
    assert!(std::fs::read_to_string(html).unwrap().starts_with("<!doctype html>"));
}

#[test]
fn a_row_without_tokens_is_told_as_such() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&[f32::NEG_INFINITY; 8]));
    let html = files.path("page.html");
    let args = ["inspect", &row, "--vocab", "8"];
    assert!(succeeds(&args).contains("No token is above -inf"));
    succeeds(&[&args[..], &["--html", html.to_str().unwrap()]].concat());
    assert!(std::fs::read_to_string(html).unwrap().contains("This row has no token."));
}

#[test]
fn one_row_is_asked_for() {
    let files = Files::new();
    let rows = files.write("rows.f32", &bytes(&[0.0; 8]));
    assert!(
        refuses(&["inspect", &rows, "--vocab", "4"]).contains("there are 2 rows; choose one with --rows")
    );
    assert!(refuses(&["inspect"]).contains("name a file of logits"));
}
