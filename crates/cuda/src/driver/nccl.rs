//! NCCL: carries messages between GPUs that do not reach each other's memory, on one host or on several.
//!
//! The library is loaded at run time. NCCL connects the ranks of a communicator when it is made, and its
//! kernels send and receive in the order of a stream, which may be under capture. A communicator is always
//! one of our own, made from an id or from the program's: so ours is ended when a rank has gone, and the
//! program's never is. A thread of each communicator waits to end it, since the others may be in a call of
//! the library, of CUDA's, or in one that waits for the device.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use libloading::Library;

use crate::driver::named;
use crate::driver::runtime::{
    GROUP_ID_BYTES, GroupId, Meeting, Message, ProgramCommunicator, received_while,
};
use crate::driver::thread_state::RelaxedCapture;
use crate::error::{Error, Result, failed};

/// The oldest version that is used, as the library encodes it: 2.18.
const OLDEST: c_int = 21_800;

/// How often a full queue is looked at.
const MOMENT: Duration = Duration::from_micros(50);

/// How long a call of the library takes at most unless it waits for other ranks or for the device.
const BRIEF: Duration = Duration::from_millis(50);

/// How many exchanges may be enqueued before the device has done the first of them. With more, a rank that
/// has gone lets the queue of launches fill up. Calls of the library then wait for room in the queue, and
/// NCCL must not be ended meanwhile: their kernels would read freed memory.
const AHEAD: usize = 32;

/// `ncclInt8`: messages are bytes.
const BYTES: c_int = 0;

/// `ncclResult_t`, of which 0 is success and [`IN_PROGRESS`] no error.
type Status = c_int;
const IN_PROGRESS: Status = 7;

type RawComm = *mut c_void;

/// `ncclUniqueId`, which NCCL takes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; GROUP_ID_BYTES]);

/// The functions of the library, with the types of its documentation.
struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> Status,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status,
    comm_split: unsafe extern "C" fn(RawComm, c_int, c_int, *mut RawComm, *mut c_void) -> Status,
    comm_count: unsafe extern "C" fn(RawComm, *mut c_int) -> Status,
    comm_user_rank: unsafe extern "C" fn(RawComm, *mut c_int) -> Status,
    comm_device: unsafe extern "C" fn(RawComm, *mut c_int) -> Status,
    comm_init_rank: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int) -> Status,
    comm_abort: unsafe extern "C" fn(RawComm) -> Status,
    comm_get_async_error: unsafe extern "C" fn(RawComm, *mut Status) -> Status,
    get_error_string: unsafe extern "C" fn(Status) -> *const c_char,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Status,
    recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Status,
    /// The functions are its code.
    _library: Library,
}

/// NCCL, loaded into this process.
#[derive(Clone, Copy)]
pub(crate) struct Nccl(&'static Functions);

impl Nccl {
    /// Loads the library that `GUMBALL_NCCL` names, or `libnccl.so.2` as the system finds it.
    ///
    /// # Errors
    /// - [`Error::Missing`] if no library is found, or it lacks a function.
    /// - [`Error::TooOld`] if it is older than 2.18.
    pub fn load() -> Result<Self> {
        static LOADED: OnceLock<Result<Functions>> = OnceLock::new();
        LOADED.get_or_init(load).as_ref().map(Self).map_err(Clone::clone)
    }

    /// Returns the id of a new group, which its ranks are to have.
    ///
    /// # Errors
    /// - [`Error::Call`] if the library finds no network interface, for example.
    pub fn new_id(self) -> Result<GroupId> {
        let mut id = UniqueId([0; GROUP_ID_BYTES]);
        // SAFETY: the pointer is to a live id.
        self.check("ncclGetUniqueId", unsafe { (self.0.get_unique_id)(&raw mut id) })?;
        Ok(id.0.map(|byte| byte as u8))
    }

    /// Joins a group, once all its ranks have come; waits for them as long as `goes_on` returns true, which
    /// is asked again and again.
    ///
    /// # Errors
    /// - [`Error::Call`] if a rank does not come, or the ranks cannot be connected; if the program's
    ///   communicator is of another rank, number of ranks or device, or does not block.
    pub fn join(
        self,
        context: &Arc<CudaContext>,
        by: &Meeting,
        (rank, world): (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Communicator> {
        let call = match by {
            Meeting::Id(_) => "ncclCommInitRank",
            Meeting::Communicator(of) => {
                self.check_place(*of, [rank, world, context.ordinal()]).map(|()| "ncclCommSplit")?
            }
        };
        let (done, joined) = mpsc::channel();
        let (own, by) = (Arc::clone(context), *by);
        // The call waits for all ranks, for ever if one does not come: then its thread is left to itself.
        thread::spawn(move || {
            let mut comm = null_mut();
            let made = own.bind_to_thread().map_err(failed("cuCtxSetCurrent")).and_then(|()| {
                let status = match by {
                    Meeting::Id(id) => {
                        let id = UniqueId(id.map(|byte| byte as c_char));
                        // SAFETY: the pointer is to a live handle, and the context of the rank's device is
                        // current.
                        unsafe { (self.0.comm_init_rank)(&raw mut comm, world as c_int, id, rank as c_int) }
                    }
                    // SAFETY: as above; its creator guarantees that the communicator is alive and not in use.
                    Meeting::Communicator(ProgramCommunicator(of)) => unsafe {
                        (self.0.comm_split)(of as RawComm, 0, rank as c_int, &raw mut comm, null_mut())
                    },
                };
                if status == IN_PROGRESS {
                    return Err(Error::call(
                        call,
                        "the communicator does not block, and only one that does is taken",
                    ));
                }
                self.check(call, status)
            });
            // Nobody waits any more after the timeout.
            if let Err(unheard) = done.send(made.map(|()| Comm(comm)))
                && let Ok(Comm(comm)) = unheard.0
            {
                // SAFETY: it was just made, and nobody else has it.
                unsafe { (self.0.comm_abort)(comm) };
            }
        });
        let made = received_while(&joined, goes_on);
        let made = made.ok_or_else(|| Error::call(call, "not all ranks came in time"))?;
        Ok(Communicator::new(self, context, made?))
    }

    /// Checks that a communicator of the program is of a rank, of so many, on a device.
    fn check_place(self, ProgramCommunicator(of): ProgramCommunicator, wanted: [usize; 3]) -> Result<()> {
        let functions = self.0;
        let asked = [functions.comm_user_rank, functions.comm_count, functions.comm_device];
        let mut found = [0; 3];
        for (ask, found) in asked.into_iter().zip(&mut found) {
            let mut number = 0;
            // SAFETY: its creator guarantees that the communicator is alive, and the pointer is to a live
            // integer.
            self.check("a question about the communicator", unsafe { ask(of as RawComm, &raw mut number) })?;
            *found = number as usize;
        }
        if found == wanted {
            return Ok(());
        }
        let told = |[rank, world, device]: [usize; 3]| format!("rank {rank} of {world} on device {device}");
        Err(Error::call(
            "communicator",
            format!("it is that of {}, but must be that of {}", told(found), told(wanted)),
        ))
    }

    fn check(self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(Error::call(call, self.text(status))) }
    }

    fn text(self, status: Status) -> String {
        // SAFETY: the function takes any number.
        let text = unsafe { (self.0.get_error_string)(status) };
        // SAFETY: it returns a text of the library, which ends with a zero byte and stays.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}

fn is_reached(event: &CudaEvent) -> Result<bool> {
    let _relaxed = RelaxedCapture::begin();
    event.try_is_complete().map_err(failed("cuEventQuery"))
}

fn load() -> Result<Functions> {
    let named = named::library("GUMBALL_NCCL");
    let named = named.map_err(|remedy| Error::Missing { library: "NCCL", remedy })?;
    let missing = |error: libloading::Error| {
        let remedy = match &named {
            Some(path) => format!("GUMBALL_NCCL leads to {}, which does not load: {error}", path.display()),
            None => "install NVIDIA's NCCL, or let GUMBALL_NCCL name the library (libnccl.so.2)".to_owned(),
        };
        Error::Missing { library: "NCCL", remedy }
    };
    let path = named.clone().unwrap_or_else(|| "libnccl.so.2".into());
    // SAFETY: the user, or the system, names NCCL, whose initialisers have no preconditions.
    let library = unsafe { Library::new(path) }.map_err(missing)?;
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the function has had the type of its field since the oldest version that is used.
            *unsafe { library.get($name) }.map_err(missing)?
        };
    }
    let functions = Functions {
        get_version: function!(b"ncclGetVersion"),
        get_unique_id: function!(b"ncclGetUniqueId"),
        comm_split: function!(b"ncclCommSplit"),
        comm_count: function!(b"ncclCommCount"),
        comm_user_rank: function!(b"ncclCommUserRank"),
        comm_device: function!(b"ncclCommCuDevice"),
        comm_init_rank: function!(b"ncclCommInitRank"),
        comm_abort: function!(b"ncclCommAbort"),
        comm_get_async_error: function!(b"ncclCommGetAsyncError"),
        get_error_string: function!(b"ncclGetErrorString"),
        group_start: function!(b"ncclGroupStart"),
        group_end: function!(b"ncclGroupEnd"),
        send: function!(b"ncclSend"),
        recv: function!(b"ncclRecv"),
        _library: library,
    };
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    let status = unsafe { (functions.get_version)(&raw mut version) };
    if status != 0 || version < OLDEST {
        let words = |version: c_int| format!("{}.{}", version / 10_000, version % 10_000 / 100);
        let needed = format!("{} or newer", words(OLDEST));
        return Err(Error::TooOld { library: "NCCL", found: words(version), needed });
    }
    Ok(functions)
}

/// A handle of the library.
#[derive(Clone, Copy)]
struct Comm(RawComm);

// SAFETY: any thread may use a communicator, one at a time, and another one may end it meanwhile.
unsafe impl Send for Comm {}

/// A rank's place in a group of NCCL.
pub(crate) struct Communicator {
    nccl: Nccl,
    shared: Arc<Shared>,
}

/// What the threads that use a communicator share with the one that ends it.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` once it is to end. Whoever calls the library with it does so without the mutex.
    comm: Option<Comm>,
    /// How many threads are in such a call.
    callers: usize,
    has_ended: bool,
    /// An event after each of the last exchanges outside a capture, the oldest first.
    reached: VecDeque<CudaEvent>,
}

impl State {
    /// Notes that an exchange was enqueued on a stream.
    fn note_exchange(&mut self, stream: &CudaStream) -> Result<()> {
        let oldest = if self.reached.len() < AHEAD { None } else { self.reached.pop_front() };
        let event = match oldest {
            Some(event) => event.record(stream).map(|()| event),
            None => stream.record_event(None),
        };
        self.reached.push_back(event.map_err(failed("cuEventRecord"))?);
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator {
    fn new(nccl: Nccl, context: &Arc<CudaContext>, Comm(comm): Comm) -> Self {
        let shared = Arc::new(Shared::default());
        shared.lock().comm = Some(Comm(comm));
        let (own, context, comm) = (Arc::clone(&shared), Arc::clone(context), Comm(comm));
        thread::spawn(move || {
            let Comm(comm) = { comm };
            // Now, while no other thread keeps CUDA from it.
            let _ = context.bind_to_thread();
            let wanted = |state: &mut State| state.comm.is_some();
            let state = own.changed.wait_while(own.lock(), wanted).unwrap_or_else(PoisonError::into_inner);
            // A thread that has just begun a call comes out of it, or waits in it. NCCL lets the latter be
            // ended from here.
            let called = |state: &mut State| state.callers > 0;
            drop(own.changed.wait_timeout_while(state, BRIEF, called));
            // SAFETY: no call begins with the communicator any more. Unlike `ncclCommDestroy`, it waits for
            // no other rank.
            unsafe { (nccl.0.comm_abort)(comm) };
            own.lock().has_ended = true;
            own.changed.notify_all();
        });
        Self { nccl, shared }
    }

    /// Enqueues messages on a stream, all of which travel at once. After [`Communicator::end`] nothing
    /// travels.
    ///
    /// # Safety
    /// The ranges lie in memory of the device, and stay there until the messages have travelled. The peers
    /// enqueue messages of the same sizes in the same order.
    pub unsafe fn exchange(&self, stream: &CudaStream, send: &[Message], receive: &[Message]) -> Result<()> {
        let status = stream.capture_status().map_err(failed("cuStreamIsCapturing"))?;
        let is_captured = status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if !is_captured {
            self.wait_for_earlier()?;
        }
        let comm = {
            let mut state = self.shared.lock();
            let Some(Comm(comm)) = state.comm else { return Ok(()) };
            state.callers += 1;
            comm
        };
        // SAFETY: the caller guarantees the ranges; the communicator is alive as long as there are callers,
        // or NCCL sees to them.
        let exchanged = unsafe { self.exchange_by(comm, stream, send, receive) };
        let mut state = self.shared.lock();
        state.callers -= 1;
        let has_ended = state.comm.is_none();
        let noted = if is_captured || has_ended { Ok(()) } else { state.note_exchange(stream) };
        self.shared.changed.notify_all();
        // What a call says that was ended is no failure of its own.
        if has_ended { Ok(()) } else { exchanged.and(noted) }
    }

    /// Waits until few enough exchanges are ahead of the device, or the communicator is to end.
    fn wait_for_earlier(&self) -> Result<()> {
        loop {
            let state = self.shared.lock();
            let oldest =
                state.reached.front().filter(|_| state.reached.len() == AHEAD && state.comm.is_some());
            if oldest.map_or(Ok(true), is_reached)? {
                return Ok(());
            }
            drop(state);
            thread::sleep(MOMENT);
        }
    }

    /// Does what [`Communicator::exchange`] does with the library's handle.
    ///
    /// # Safety
    /// As there, and the communicator is alive.
    unsafe fn exchange_by(
        &self,
        comm: RawComm,
        stream: &CudaStream,
        send: &[Message],
        receive: &[Message],
    ) -> Result<()> {
        let (nccl, functions, stream) = (self.nccl, self.nccl.0, stream.cu_stream().cast());
        // SAFETY: the function has no preconditions.
        nccl.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let sent = send.iter().try_for_each(|message| {
            let (from, peer) = (message.address as *const c_void, message.peer as c_int);
            // SAFETY: the caller guarantees the range; communicator and stream are alive.
            nccl.check("ncclSend", unsafe {
                (functions.send)(from, message.bytes, BYTES, peer, comm, stream)
            })
        });
        let received = receive.iter().try_for_each(|message| {
            let (to, peer) = (message.address as *mut c_void, message.peer as c_int);
            // SAFETY: as above.
            nccl.check("ncclRecv", unsafe { (functions.recv)(to, message.bytes, BYTES, peer, comm, stream) })
        });
        // SAFETY: the group was begun above, and ends whatever happened in it.
        let ended = nccl.check("ncclGroupEnd", unsafe { (functions.group_end)() });
        sent.and(received).and(ended)
    }

    /// Returns why messages travel no more, if the library knows that they do not.
    pub fn failure(&self) -> Option<String> {
        // The call waits for nothing, so the communicator stays meanwhile.
        let state = self.shared.lock();
        let Comm(comm) = state.comm.as_ref()?;
        let mut status = 0;
        // SAFETY: the communicator is alive, and the pointer is to a live integer.
        let asked = unsafe { (self.nccl.0.comm_get_async_error)(*comm, &raw mut status) };
        let status = if asked == 0 { status } else { asked };
        (status != 0 && status != IN_PROGRESS).then(|| self.nccl.text(status))
    }

    /// Returns whether the device has not done the last exchange that was enqueued outside a capture.
    pub fn is_pending(&self) -> bool {
        // A device that has failed is an error of the call that reads its results.
        self.shared.lock().reached.back().is_some_and(|event| is_reached(event) == Ok(false))
    }

    /// Ends the communicator, and with it the messages that are under way, which do not arrive then.
    pub fn end(&self) {
        self.shared.lock().comm = None;
        self.shared.changed.notify_all();
    }

    /// Returns whether the communicator has ended, and waits for that as long. NCCL keeps what graphs have of
    /// it, until these are freed.
    pub fn has_ended(&self, patience: Duration) -> bool {
        let lasts = |state: &mut State| !state.has_ended;
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), patience, lasts);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").finish_non_exhaustive()
    }
}
