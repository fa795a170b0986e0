//! Errors: a code that the call returns, and a description that the thread keeps.
//!
//! As with `errno`, a call that succeeds leaves the thread's last error unchanged.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use gumball_engine::unstable::{quoted, shown_of};
use gumball_engine::{Error, RanksError};

/// The outcome of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    GUMBALL_OK = 0,
    /// A value lies outside the range of its parameter; a pointer that must be given is NULL.
    GUMBALL_OUT_OF_RANGE = 1,
    /// Two parameters exclude each other.
    GUMBALL_CONFLICT = 2,
    /// A buffer or list has the wrong length.
    GUMBALL_LENGTH = 3,
    GUMBALL_UNKNOWN = 4,
    /// The machine lacks something, memory for instance, or the device failed: no mistake of the caller's.
    GUMBALL_UNAVAILABLE = 5,
    /// A text is not the JSON that is read here.
    GUMBALL_JSON = 6,
    /// A mistake of the library's own, which is worth a report. No sequence has moved; the memory that the
    /// call was to write may hold anything.
    GUMBALL_PANIC = 7,
    /// Another process of a group ended, or its connection broke.
    GUMBALL_LOST = 8,
    /// Another process of a group did not answer in time.
    GUMBALL_LATE = 9,
    /// Another process of a group was made with something else, or is at another step.
    GUMBALL_DISAGREE = 10,
    /// Another process of a group sent what none of this version sends.
    GUMBALL_CORRUPT = 11,
    /// An earlier exchange of a group failed, which the message tells.
    GUMBALL_BROKEN = 12,
    /// A device is lost, with all that lies on it: a kernel read or wrote where it must not, or the device
    /// failed. Each later call in this process gets the same error.
    GUMBALL_DEVICE_LOST = 13,
}

/// The parts of an error. Texts stay until the thread's next error, and are empty where there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorParts {
    /// The parameter that it is about, or what is unavailable.
    pub parameter: *const c_char,
    /// Its value, its length, the unknown name, or the parameter it excludes.
    pub value: *const c_char,
    /// The allowed values, the names that are known, or the reason.
    pub allowed: *const c_char,
}

/// Returns this thread's last error in words: the parameter, its value and the allowed range. Never NULL; it
/// stays until the thread's next error.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_error_message() -> *const c_char {
    last_text(0)
}

/// Returns the code of this thread's last error, GUMBALL_OK if there was none, and writes its parts, unless
/// `out` is NULL.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_error(out: Option<&mut MaybeUninit<ErrorParts>>) -> Code {
    if let Some(out) = out {
        out.write(ErrorParts { parameter: last_text(1), value: last_text(2), allowed: last_text(3) });
    }
    last(Code::GUMBALL_OK, |last| last.0)
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub code: Code,
    parameter: String,
    value: String,
    allowed: String,
    message: String,
}

/// A result whose error is reported to the C caller.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A value outside the range of a parameter; the parameter's name may be composed at run time.
    pub fn out_of_range(parameter: impl Into<String>, value: impl ToString, allowed: &str) -> Self {
        let parameter = parameter.into();
        let value = shown_of(&parameter, &value.to_string());
        let message = format!("{parameter} is {value}, but must be {allowed}");
        Self { code: Code::GUMBALL_OUT_OF_RANGE, parameter, value, allowed: allowed.to_owned(), message }
    }

    /// A pointer that is NULL and must not be.
    pub fn null(parameter: &str) -> Self {
        Self::out_of_range(parameter, "NULL", "a pointer to something")
    }

    /// A text that is no valid JSON for this parameter.
    pub fn json(parameter: &str, error: &serde_json::Error) -> Self {
        let message = format!("{parameter} is not read: {}", quoted(error.to_string().as_bytes(), 1500));
        Self::plain(Code::GUMBALL_JSON, parameter, message)
    }

    /// A panic, which is a defect of this library.
    pub fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no words");
        let message =
            format!("a mistake of the library's own: {text}; no sequence has moved, please report it");
        Self::plain(Code::GUMBALL_PANIC, "", message)
    }

    fn plain(code: Code, parameter: &str, message: String) -> Self {
        Self { code, parameter: parameter.to_owned(), value: String::new(), allowed: String::new(), message }
    }

    pub fn remember(self) -> Code {
        let texts = [self.message, self.parameter, self.value, self.allowed].map(words);
        // If the thread is ending and its storage is gone, the error cannot be read.
        let _ = LAST.try_with(|place| *place.borrow_mut() = Some((self.code, texts)));
        self.code
    }
}

/// Refuses the first of what is given that is set, and that is not read beside `other`.
pub(crate) fn refuse(
    given: impl IntoIterator<Item = (&'static str, bool)>,
    other: &'static str,
    reason: &'static str,
) -> Result<()> {
    match given.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((parameter, _)) => Err(Error::Conflict { parameter, other, reason }.into()),
    }
}

impl From<Error> for Failure {
    /// What lies in a struct is called by the name of its field.
    fn from(error: Error) -> Self {
        use Code::*;
        let error = error.with_parameter(|name| match name {
            "to" => "ints",
            "paths" => "ids",
            _ => ["drafts.", "hidden."].iter().find_map(|of| name.strip_prefix(of)).unwrap_or(name),
        });
        let message = error.to_string();
        let (code, parameter, value, allowed) = match error {
            Error::OutOfRange { parameter, value, allowed } => {
                (GUMBALL_OUT_OF_RANGE, parameter, value, allowed)
            }
            Error::Conflict { parameter, other, reason } => {
                (GUMBALL_CONFLICT, parameter, other.to_owned(), reason.to_owned())
            }
            Error::Length { parameter, length, allowed } => {
                (GUMBALL_LENGTH, parameter, length.to_string(), allowed)
            }
            Error::Unknown { parameter, name, known } => (GUMBALL_UNKNOWN, parameter, name, known),
            Error::Unavailable { resource, reason } => (GUMBALL_UNAVAILABLE, resource, String::new(), reason),
            Error::DeviceLost { reason } => (GUMBALL_DEVICE_LOST, "device", String::new(), reason),
            Error::Ranks(error) => return (*error).into(),
            _ => (GUMBALL_PANIC, "", String::new(), String::new()),
        };
        Self { code, parameter: parameter.to_owned(), value, allowed, message }
    }
}

impl From<RanksError> for Failure {
    /// The parameter is `rank` with its number, or what processes disagree on with the other's value; what is
    /// allowed is the reason, or the value that this process has.
    fn from(error: RanksError) -> Self {
        use Code::*;
        let message = error.to_string();
        let of_rank =
            |code, rank: usize, allowed: String| (code, "rank".to_owned(), rank.to_string(), allowed);
        let (code, parameter, value, allowed) = match error {
            RanksError::Lost { rank, reason } => of_rank(GUMBALL_LOST, rank, reason),
            RanksError::Late { rank, waited } => of_rank(GUMBALL_LATE, rank, format!("within {waited:?}")),
            RanksError::Disagree { what, ours, theirs, .. } => {
                (GUMBALL_DISAGREE, what.to_owned(), theirs, ours)
            }
            RanksError::Corrupt { rank, what } => of_rank(GUMBALL_CORRUPT, rank, what),
            RanksError::Unavailable { what, reason } => (GUMBALL_UNAVAILABLE, what, String::new(), reason),
            RanksError::Broken(_) => (GUMBALL_BROKEN, String::new(), String::new(), String::new()),
            _ => (GUMBALL_PANIC, String::new(), String::new(), String::new()),
        };
        Self { code, parameter, value, allowed, message }
    }
}

/// An error in the form that C reads: its code, message, parameter, value, and the allowed values.
type Last = (Code, [CString; 4]);

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Returns a part of the thread's last error; `otherwise` if there was none.
fn last<T>(otherwise: T, part: impl FnOnce(&Last) -> T) -> T {
    let found = LAST.try_with(|last| last.borrow().as_ref().map(part));
    found.ok().flatten().unwrap_or(otherwise)
}

/// Returns the address of a text of the thread's last error; that of an empty text if there was none.
fn last_text(index: usize) -> *const c_char {
    last(c"".as_ptr(), |last| last.1[index].as_ptr())
}

/// A text for C, without inner NULs, which would end it early.
pub(crate) fn words(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).expect("it has no NUL")
}
