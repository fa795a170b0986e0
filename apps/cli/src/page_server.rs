//! The explorer's page with a model, for the browser of this machine alone.
//!
//! The server listens on 127.0.0.1. A request is answered if it names that host and port, has the random
//! token of this start in its path and, where it asks for more than the page, comes from the page: other
//! pages of the browser, names that others let point here, and programs that do not know the token get an
//! error. Bodies, texts, connections and waiting are bounded. When all places are taken, a new connection
//! takes that of one that has not shown the token, so that idle connections cannot shut the page out. One
//! request is answered at a time, as there is one model.
//!
//! ```text
//! GET  /TOKEN/        the page
//! POST /TOKEN/tokens  {"text": "..", "chat": true}         -> [id, ..]
//! POST /TOKEN/texts   {}                                   -> ["..", ..], of each token
//! POST /TOKEN/row     {"prompt": [id, ..], "output": [..]} -> logits, f32, little endian
//! ```

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use gumball_spec::hex::hex;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::continuation::{Continuation, most_tokens};
use crate::model::{Message, Model};
use crate::session::Session;
use crate::{Error, Result};

/// The most bytes of a request's body: [`MOST_TOKENS`](crate::continuation::MOST_TOKENS) ids of seven digits,
/// or as long a text.
pub const MOST_BODY_BYTES: usize = 1 << 16;
/// The most connections at once; a browser opens six.
const MOST_CONNECTIONS: usize = 16;
/// How long a request may take to arrive, its head and its body each, and how long an answer to be read.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How often it is looked whether to end.
const LOOK: Duration = Duration::from_millis(100);

/// Where the page says what it may connect to, and where it has no model.
const MAY_CONNECT: &str = "connect-src 'none'";
const NO_MODEL: &str = r#"<script type="application/json" id="served">null</script>"#;

/// The model as the page reads it.
#[derive(Serialize)]
struct Served<'a> {
    name: &'a str,
    /// The SHA-256 of its file, as far as links have it.
    digest: &'a str,
    vocab: usize,
    most_tokens: usize,
    /// The ids that end a text.
    ends: &'a [u32],
    /// Whether it has a chat template.
    chat: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    text: String,
    chat: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    prompt: Vec<u32>,
    output: Vec<u32>,
}

/// The reason why a request is refused.
struct Refusal(StatusCode, String);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
    }
}

/// The page and the model, on a port of this machine.
#[derive(Debug)]
pub struct PageServer {
    listener: std::net::TcpListener,
    /// `127.0.0.1:PORT`.
    host: String,
    token: String,
    page: Bytes,
    session: Session,
    continuation: Continuation,
}

impl PageServer {
    /// Takes a port, or any free one if `port` is 0. `page` is the explorer's HTML, `digest` that of the
    /// model's file.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the port is taken, or if the page was made by another version.
    /// - The operating system's error, if it has no random bytes.
    pub fn new(session: Session, page: &str, digest: &str, port: u16) -> Result<Self> {
        let refused = |error| Error::Usage(format!("--port {port}: {error}; leave it out for a free one"));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(refused)?;
        listener.set_nonblocking(true)?;
        let address: SocketAddr = listener.local_addr()?;
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(std::io::Error::from)?;
        let token = hex(&token);
        if [MAY_CONNECT, NO_MODEL].iter().any(|part| page.matches(part).count() != 1) {
            let reason = "the explorer's page is of another version: ci/explorer makes it anew";
            return Err(Error::Usage(reason.to_owned()));
        }
        let model = &session.model;
        let served = serde_json::to_string(&Served {
            name: &session.name,
            digest,
            vocab: model.vocab(),
            most_tokens: most_tokens(model),
            ends: model.eos(),
            chat: model.chat.is_some(),
        });
        // A name that holds "</script>" must not end the script.
        let served = served.map_err(std::io::Error::from)?.replace('<', "\\u003c");
        let page = page
            .replace(MAY_CONNECT, "connect-src 'self'")
            .replace(NO_MODEL, &NO_MODEL.replace("null", &served));
        let (page, continuation) = (Bytes::from(page), Continuation::default());
        Ok(Self { listener, host: address.to_string(), token, page, session, continuation })
    }

    /// The page's address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://{}/{}/", self.host, self.token)
    }

    /// Answers until `interrupt` is set.
    ///
    /// # Errors
    /// The operating system's error, if it cannot wait for connections.
    pub fn run(self, interrupt: &AtomicBool) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = self.listener.try_clone()?;
        let server = Rc::new(RefCell::new(self));
        LocalSet::new().block_on(&runtime, async move {
            let listener = TcpListener::from_std(listener)?;
            let mut open: Vec<Rc<Connection>> = Vec::new();
            while !interrupt.load(Ordering::Relaxed) {
                let Ok(accepted) = timeout(LOOK, listener.accept()).await else { continue };
                let Ok((stream, _)) = accepted else {
                    // Such as too many open files, which may pass.
                    sleep(LOOK).await;
                    continue;
                };
                open.retain(|connection| Rc::strong_count(connection) > 1);
                if open.len() == MOST_CONNECTIONS {
                    // The oldest.
                    let stranger = open.iter().position(|connection| !connection.is_admitted.get());
                    let Some(stranger) = stranger else { continue };
                    open.remove(stranger).is_evicted.notify_one();
                }
                let connection = Rc::new(Connection::default());
                open.push(Rc::clone(&connection));
                let server = Rc::clone(&server);
                tokio::task::spawn_local(async move { serve(&server, &connection, stream).await });
            }
            Ok(())
        })
    }

    /// Looks whether a request may come in; returns what it asks for.
    fn admit<'a>(&self, method: &Method, path: &'a str, headers: &HeaderMap) -> Result<&'a str, Refusal> {
        let said = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
        let forbidden = |reason: &str| Refusal(StatusCode::FORBIDDEN, reason.to_owned());
        if said(header::HOST) != Some(self.host.as_bytes()) {
            return Err(forbidden("the host is another"));
        }
        let origin = said(header::ORIGIN);
        let own = format!("http://{}", self.host);
        if origin != Some(own.as_bytes()) && (method != Method::GET || origin.is_some()) {
            return Err(forbidden("the request is not from this server's page"));
        }
        let rest = path.strip_prefix('/').and_then(|path| path.strip_prefix(&self.token));
        rest.and_then(|path| path.strip_prefix('/'))
            .ok_or_else(|| Refusal(StatusCode::NOT_FOUND, "the address is not of this start".to_owned()))
    }

    /// Answers a question of the page.
    fn ask(&mut self, what: &str, body: &[u8]) -> Result<(&'static str, Vec<u8>), Refusal> {
        let model = &mut self.session.model;
        Ok(match what {
            "tokens" => json(&tokens(model, &read(body)?)?)?,
            "texts" => {
                let Nothing {} = read(body)?;
                let texts = (0..model.tokens() as u32).map(|id| model.tokenizer.readable(id));
                json(&texts.collect::<Vec<_>>())?
            }
            "row" => {
                let Texts { prompt, output } = read(body)?;
                let row = self.continuation.row(model, &prompt, &output)?;
                ("application/octet-stream", row.iter().flat_map(|z| z.to_le_bytes()).collect())
            }
            _ => return Err(Refusal(StatusCode::NOT_FOUND, "known are: tokens, texts, row".to_owned())),
        })
    }
}

/// A connection as the server sees it.
#[derive(Debug, Default)]
struct Connection {
    /// Whether its request has shown the token.
    is_admitted: Cell<bool>,
    is_answered: Notify,
    is_evicted: Notify,
}

/// Answers the request of a connection, until the answer is read, or takes too long to be, or another
/// connection needs the place.
async fn serve(server: &RefCell<PageServer>, connection: &Connection, stream: TcpStream) {
    let answer = service_fn(|request| answer(server, connection, request));
    let mut http = http1::Builder::new();
    let http = http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(ARRIVAL);
    let unread = async {
        connection.is_answered.notified().await;
        sleep(ARRIVAL).await;
    };
    let (mut served, mut unread) = (pin!(http.serve_connection(TokioIo::new(stream), answer)), pin!(unread));
    let mut evicted = pin!(connection.is_evicted.notified());
    // A broken connection is an error of its browser, which sees it, and not of the server.
    poll_fn(|context| {
        let ended = served.as_mut().poll(context).is_ready()
            || unread.as_mut().poll(context).is_ready()
            || evicted.as_mut().poll(context).is_ready();
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Answers a request.
async fn answer(
    server: &RefCell<PageServer>,
    connection: &Connection,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let reply = reply(server, connection, request).await;
    connection.is_answered.notify_one();
    let (status, kind, body) = match reply {
        Ok((kind, body)) => (StatusCode::OK, kind, body),
        Err(Refusal(status, reason)) => {
            let body = serde_json::json!({ "error": reason }).to_string();
            (status, "application/json", Bytes::from(body))
        }
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Returns the type and the bytes of a reply.
async fn reply(
    server: &RefCell<PageServer>,
    connection: &Connection,
    request: Request<Incoming>,
) -> Result<(&'static str, Bytes), Refusal> {
    let (head, body) = request.into_parts();
    let asked = server.borrow().admit(&head.method, head.uri.path(), &head.headers)?;
    connection.is_admitted.set(true);
    match (head.method, asked) {
        (Method::GET, "") => Ok(("text/html; charset=utf-8", server.borrow().page.clone())),
        (Method::POST, asked) => {
            let late = |_| Refusal(StatusCode::REQUEST_TIMEOUT, "the request does not arrive".to_owned());
            let large = || {
                let reason = format!("the body is cut off or has more than {MOST_BODY_BYTES} bytes");
                Refusal(StatusCode::PAYLOAD_TOO_LARGE, reason)
            };
            if body.size_hint().lower() > MOST_BODY_BYTES as u64 {
                return Err(large());
            }
            let body = timeout(ARRIVAL, Limited::new(body, MOST_BODY_BYTES).collect()).await.map_err(late)?;
            let body = body.map_err(|_| large())?.to_bytes();
            let (kind, reply) = server.borrow_mut().ask(asked, &body)?;
            Ok((kind, reply.into()))
        }
        _ => Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, "GET brings the page, POST asks".to_owned())),
    }
}

/// Cuts a text into tokens, as `generate` does.
fn tokens(model: &Model, Text { text, chat }: &Text) -> Result<Vec<u32>> {
    Ok(match chat {
        true => model.prompt(&[Message::new("user", text)])?,
        false => model.tokenizer.encode_prompt(text)?,
    })
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.to_string()))
}

fn json(value: &impl Serialize) -> Result<(&'static str, Vec<u8>)> {
    Ok(("application/json", serde_json::to_vec(value).map_err(std::io::Error::from)?))
}
