//! Chat templates are programs out of files: they end in time, in memory, and in one line.

use std::time::{Duration, Instant};

use gumball_cli::model::{ChatTemplate, Error, Message};

use crate::support::{Files, gumball, refuses};
use crate::zeros;

/// Lets a template run in this process, which must refuse it soon, and returns the reason.
fn refused(template: &str) -> String {
    let start = Instant::now();
    let template = ChatTemplate::new(template, "<s>", "</s>");
    let error = template.render(&[Message::new("user", "hi")], true).expect_err("a hostile template");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let Error::Template(reason) = error else { panic!("{error}") };
    reason
}

#[test]
fn an_expression_that_nests_without_end_is_refused_before_it_is_parsed() {
    for deep in ["not ", "1+", "-", "1~", "x|", "x.", "a if b else "] {
        let reason = refused(&format!("{{{{ {}x }}}}", deep.repeat(50_000)));
        assert!(reason.contains("more than 1000 words and signs"), "{deep}: {reason}");
        // Just below the limit it is parsed; its value does not matter.
        let template = format!("{{{{ {}x }}}}", deep.repeat(190));
        let _ = ChatTemplate::new(template, "", "").render(&[], false);
    }
    assert!(refused(&"{% if x %}".repeat(10_000)).contains("recursion"));
    let branches = format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(10_000));
    assert!(refused(&branches).contains("branches by elif"));
}

#[test]
fn a_template_that_runs_for_ever_runs_out_of_steps() {
    let loops = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    assert!(refused(loops).contains("steps"));
    assert!(refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").contains("recursion"));
    let nested =
        "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}";
    assert!(!refused(nested).is_empty(), "nor does what it nested end the process when it is dropped");
}

#[test]
fn a_template_that_writes_for_ever_is_stopped() {
    let loud = format!("{{% for i in range(90000) %}}{}{{% endfor %}}", "x".repeat(10_000));
    assert!(refused(&loud).contains("more than 16777216 bytes"));
}

#[test]
fn a_template_that_takes_all_memory_is_stopped_by_the_command() {
    let doubled = "{% set n = namespace(x='0123456789') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}";
    for template in [doubled, "{{ '%9999999999d' | format(1) }}"] {
        let files = Files::new();
        let model = zeros::with_template(&files, template);
        let start = Instant::now();
        let message = refuses(&["generate", "hi", "--model", &model, "--max-tokens", "1"]);
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        assert!(message.starts_with("error: the model's chat template failed: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_sound_template_says_the_same_in_a_process_of_its_own() {
    let files = Files::new();
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role ~ ':' ~ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}";
    let model = zeros::with_template(&files, template);
    let flags = ["--model", &model, "--max-tokens", "1", "--json", "--seed", "1"];
    let tokens = |args: &[&str]| {
        let out = gumball(&[&["generate"], args, &flags].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()["prompt_tokens"].clone()
    };
    let here = ChatTemplate::new(template, "<s>", "</s>");
    let text = here.render(&[Message::new("user", "hi é")], true).expect("a sound template");
    assert_eq!(text, "<s>user:hi é!");
    assert_eq!(tokens(&["hi é"]), tokens(&["--no-chat", &text]));
    let raised = zeros::with_template(&files, "{{ raise_exception('roles must alternate') }}");
    assert!(refuses(&["generate", "x", "--model", &raised]).contains("roles must alternate"));
}
