//! `gumball explore --model`: the rows of a small model from the page's server, and who gets none.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use candle_core::quantized::GgmlDType;
use gumball_cli::continuation::{Continuation, MOST_TOKENS};
use gumball_cli::model::Model;
use gumball_cli::page_server::MOST_BODY_BYTES;
use serde_json::{Value, json};

use crate::fragments::root;
use crate::speculate;
use crate::support::{Files, gumball, refuses, succeeds};

/// A server on the page's source, which has all that the server looks for, and on a small model.
struct Served {
    child: Child,
    host: String,
    token: String,
    files: Files,
}

struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Returns the command, as if it had been built where a page of the explorer was made.
fn with_page(files: &Files, page: &[u8]) -> Command {
    let (built, program) = (env!("CARGO_BIN_EXE_gumball"), files.path("target/debug/gumball"));
    for folder in ["target/debug", "target/explorer"] {
        fs::create_dir_all(files.path(folder)).expect("a folder");
    }
    fs::hard_link(built, &program).or_else(|_| fs::copy(built, &program).map(drop)).expect("a copy");
    files.write("target/explorer/index.html", page);
    Command::new(program)
}

impl Served {
    fn new() -> Self {
        let files = Files::new();
        files.write("m.gguf", &speculate::model(GgmlDType::Q8_0));
        let page = fs::read(root().join("apps/explorer/index.html")).expect("the page's source");
        let mut child = with_page(&files, &page)
            .args(["explore", "--model", &files.name("m.gguf")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).expect("an address");
        let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line}"));
        let (host, token) = address.trim_end_matches('/').split_once('/').expect("a path");
        assert!(host.starts_with("127.0.0.1:") && token.len() == 32, "{line}");
        Self { child, host: host.to_owned(), token: token.to_owned(), files }
    }

    /// Sends the bytes of a request, of which the server may refuse to read the rest.
    fn send(&self, request: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(&self.host).expect("the server listens");
        let _ = stream.write_all(request);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(reply[..end].to_vec()).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Reply { status, head: head.to_ascii_lowercase(), body: reply[end + 4..].to_vec() }
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        self.send(&[head.as_bytes(), body].concat())
    }

    /// Asks as the page does.
    fn ask(&self, what: &str, question: &Value) -> Reply {
        let origin = format!("http://{}", self.host);
        let headers = [("host", &*self.host), ("origin", &*origin)];
        self.request("POST", &format!("/{}/{what}", self.token), &headers, question.to_string().as_bytes())
    }

    fn row(&self, prompt: &[u32], output: &[u32]) -> Vec<f32> {
        let reply = self.ask("row", &json!({ "prompt": prompt, "output": output }));
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        reply.body.chunks_exact(4).map(|z| f32::from_le_bytes(z.try_into().unwrap())).collect()
    }

    /// Says why a question is refused.
    fn refused(&self, what: &str, question: &Value, status: u16) -> String {
        let reply = self.ask(what, question);
        assert_eq!(reply.status, status, "{what} {question}");
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        told["error"].as_str().expect("a reason").to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_page_knows_its_model_and_gets_tokens_texts_and_rows() {
    let served = Served::new();
    let page = served.request("GET", &format!("/{}/", served.token), &[("host", &served.host)], b"");
    let text = String::from_utf8(page.body).expect("text");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-security-policy: frame-ancestors 'none'"), "{}", page.head);
    assert!(text.contains("connect-src 'self'") && text.contains(r#"id="served">{"name":"m","digest":""#));

    let model = Model::load(&served.files.path("m.gguf")).expect("the model");
    let ids: Vec<u32> =
        serde_json::from_slice(&served.ask("tokens", &json!({ "text": "aba caba", "chat": false })).body)
            .unwrap();
    assert_eq!(ids, model.tokenizer.encode_prompt("aba caba").unwrap());
    let texts: Vec<String> = serde_json::from_slice(&served.ask("texts", &json!({})).body).unwrap();
    assert_eq!(texts.len(), model.tokens());
    assert_eq!(texts[ids[1] as usize], model.tokenizer.readable(ids[1]));

    // The row that `generate` draws from, at any order of questions.
    let args = ["generate", "aba caba", "--no-chat", "--json", "--max-tokens", "4", "--temperature", "0"];
    let written: Value =
        serde_json::from_str(&succeeds(&[&args[..], &["--model", &served.files.name("m.gguf")]].concat()))
            .unwrap();
    let drawn: Vec<u32> = written["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["id"].as_u64().unwrap() as u32)
        .collect();
    for place in [0, 3, 1, 2] {
        let row = served.row(&ids, &drawn[..place]);
        let best = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        assert_eq!(best, drawn[place], "place {place}");
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_was_asked_before() {
    let files = Files::new();
    let path = files.write("m.gguf", &speculate::model(GgmlDType::Q8_0));
    let mut model = Model::load(path.as_ref()).expect("the model");
    let asked: [(&[u32], &[u32]); 7] = [
        (&[1, 264, 265], &[]),
        (&[1, 264, 265], &[260, 261, 262, 263]),
        (&[1, 264, 265], &[260, 261]),
        (&[1, 264, 265], &[260, 261, 262, 266]),
        (&[1, 264], &[265, 260]),
        (&[1, 264, 265], &[260, 261, 262, 263]),
        (&[1, 264, 265], &[260, 267, 262, 263]),
    ];
    let mut continuation = Continuation::default();
    for (prompt, output) in asked {
        let row = continuation.row(&mut model, prompt, output).expect("a row");
        let mut other = Model::load(path.as_ref()).expect("the model");
        let mut hidden = other.llama.hidden(prompt).expect("the prompt runs");
        for id in output {
            hidden = other.llama.hidden(&[*id]).expect("the token runs");
        }
        assert!(row == other.llama.logits(&hidden).expect("logits"), "{prompt:?} {output:?}");
    }
    // What fails leaves the next row as it is.
    assert!(continuation.row(&mut model, &[1, 264, 265], &[260, 999_999]).is_err());
    let again = continuation.row(&mut model, &[1, 264, 265], &[260, 267]).expect("a row");
    assert!(again == Continuation::default().row(&mut model, &[1, 264, 265], &[260, 267]).unwrap());
}

#[test]
fn only_the_page_itself_is_answered() {
    let served = Served::new();
    let (host, own) = (&*served.host, format!("http://{}", served.host));
    let path = format!("/{}/row", served.token);
    let body = br#"{"prompt": [1], "output": []}"#;
    let ask = |headers: &[(&str, &str)]| served.request("POST", &path, headers, body).status;
    assert_eq!(ask(&[("host", host), ("origin", &own)]), 200);
    let localhost = host.replace("127.0.0.1", "localhost");
    for foreign in ["example.com", "127.0.0.1", &localhost, "127.0.0.1:1"] {
        assert_eq!(ask(&[("host", foreign), ("origin", &own)]), 403, "{foreign}");
        let page = served.request("GET", &format!("/{}/", served.token), &[("host", foreign)], b"");
        assert_eq!(page.status, 403, "{foreign}");
    }
    for foreign in ["http://example.com", "null", "http://127.0.0.1", &format!("{own}0")] {
        assert_eq!(ask(&[("host", host), ("origin", foreign)]), 403, "{foreign}");
    }
    assert_eq!(ask(&[("host", host)]), 403, "no origin");
    for path in ["/", "/row", "/00000000000000000000000000000000/row", &format!("/{}", served.token)] {
        let reply = served.request("POST", path, &[("host", host), ("origin", &own)], body);
        assert_eq!(reply.status, 404, "{path}");
        assert!(!String::from_utf8_lossy(&reply.body).contains(&served.token));
    }
    assert_eq!(served.request("PUT", &path, &[("host", host), ("origin", &own)], body).status, 405);
    assert!(!served.ask("texts", &json!({})).head.contains("access-control"));
}

#[test]
fn what_is_too_large_or_makes_no_sense_is_refused_and_the_server_goes_on() {
    let served = Served::new();
    let long = "a".repeat(MOST_BODY_BYTES);
    assert!(served.refused("tokens", &json!({ "text": long, "chat": false }), 413).contains("65536 bytes"));
    // A length that no body has.
    let head = format!(
        "POST /{0}/row HTTP/1.1\r\nhost: {1}\r\norigin: http://{1}\r\ncontent-length: 99999999999\r\nconnection: close\r\n\r\n",
        served.token, served.host
    );
    assert_eq!(served.send(head.as_bytes()).status, 413);
    let many = vec![1; 161];
    assert!(
        served.refused("row", &json!({ "prompt": many, "output": [] }), 422).contains("allowed are 1 to 160")
    );
    const { assert!(MOST_TOKENS * 8 + 100 < MOST_BODY_BYTES) };
    served.refused("row", &json!({ "prompt": [], "output": [1] }), 422);
    served.refused("row", &json!({ "prompt": [1], "output": [4_000_000_000_u32] }), 422);
    for question in [json!({ "prompt": [1] }), json!({ "prompt": [1], "output": [], "n": 1 }), json!([-1])] {
        served.refused("row", &question, 400);
    }
    served.refused("rows", &json!({}), 404);
    let headers = "x: y\r\n".repeat(10_000);
    let flood = format!("GET /{}/ HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", served.token, served.host);
    assert_eq!(served.send(flood.as_bytes()).status, 431);
    assert_eq!(served.row(&[1, 264], &[]).len(), 269);
}

#[test]
fn connections_that_do_not_know_the_token_never_shut_the_page_out() {
    let served = Served::new();
    let request = format!("GET /none/ HTTP/1.1\r\nhost: {}\r\n\r\n", served.host);
    let mut open = Vec::new();
    for sent in [&*request, &request[..20], ""].repeat(16) {
        let mut stream = TcpStream::connect(&served.host).expect("the server listens");
        stream.write_all(sent.as_bytes()).expect("bytes are taken");
        open.push(stream);
        // None of them reads, and the last ones are new.
        if open.len() >= 16 {
            assert_eq!(served.row(&[1], &[]).len(), 269, "beside {}", open.len());
        }
    }
    // The server answers and closes the connections that it has kept.
    let mut last = String::new();
    open[45].read_to_string(&mut last).expect("an answer");
    assert!(last.starts_with("HTTP/1.1 404") && last.contains("connection: close"), "{last}");
}

#[test]
#[cfg(unix)]
fn an_interrupt_ends_it_cleanly() {
    let mut served = Served::new();
    assert_eq!(served.row(&[1], &[]).len(), 269);
    let kill = Command::new("kill").args(["-INT", &served.child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert!(served.child.wait().expect("it ends").success());
}

#[test]
fn what_cannot_be_served_is_said() {
    assert!(refuses(&["explore", "--port", "80"]).contains("--model"));
    assert!(refuses(&["explore", "--model", "x", "--port", "65536"]).contains("0..=65535"));
    let files = Files::new();
    files.write("m.gguf", &speculate::model(GgmlDType::Q8_0));
    let output = with_page(&files, b"<p>of another version</p>")
        .args(["explore", "--model", &files.name("m.gguf")])
        .output()
        .expect("the command starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ci/explorer makes it anew"));
    assert_eq!(gumball(&["explore", "--help"]).status.code(), Some(0));
}
