//! The streams of a GPU: the one in use, and how it waits for the work on another one.
//!
//! An event makes a stream that comes into use wait for the GPU's earlier work, so that this work has one
//! order across all streams. A stream under capture waits for nothing: nothing runs there, and the order
//! counts when the graph is replayed.

use std::fmt;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUevent_flags, CUstreamCaptureStatus};
use cudarc::driver::{CudaEvent, CudaStream};

use crate::driver::thread_state::RelaxedCapture;
use crate::driver::transfer::{DownloadBuffer, UploadBuffer};
use crate::error::{Error, Result, failed};

/// Handles of default streams, which cannot be captured: null, the legacy default stream, the per-thread one.
const DEFAULT_STREAMS: [usize; 3] = [0, 1, 2];

/// Returns the handle of a stream.
pub(crate) fn handle(stream: &CudaStream) -> usize {
    stream.cu_stream() as usize
}

/// A stream, with page-locked memory for its copies.
pub(crate) struct Stream {
    pub cuda: Arc<CudaStream>,
    /// For copies to the device.
    pub upload: Mutex<UploadBuffer>,
    /// For short copies from the device.
    pub download: Mutex<DownloadBuffer>,
}

impl Stream {
    /// Allocates the memory, also while the calling thread captures a stream.
    pub fn new(stream: Arc<CudaStream>) -> Result<Arc<Self>> {
        let _relaxed = RelaxedCapture::begin();
        let upload = Mutex::new(UploadBuffer::new(&stream)?);
        let download = Mutex::new(DownloadBuffer::new(&stream)?);
        Ok(Arc::new(Self { cuda: stream, upload, download }))
    }

    pub fn is_default(&self) -> bool {
        DEFAULT_STREAMS.contains(&handle(&self.cuda))
    }
}

/// Returns whether a stream is under capture.
pub(crate) fn is_capturing(stream: &CudaStream) -> Result<bool> {
    let status = stream.capture_status().map_err(failed("cuStreamIsCapturing"))?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Returns the milliseconds that the device takes for the work that `enqueue` enqueues on a stream.
pub(crate) fn elapsed_ms<E: From<Error>>(
    stream: &CudaStream,
    enqueue: impl FnOnce() -> std::result::Result<(), E>,
) -> std::result::Result<f32, E> {
    let failed = failed("timing by events");
    let event = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(&failed);
    let began = event()?;
    enqueue()?;
    let ended = event()?;
    ended.synchronize().map_err(&failed)?;
    Ok(began.elapsed_ms(&ended).map_err(&failed)?)
}

/// The streams of a GPU, and the event by which they wait for each other.
pub(crate) struct Streams {
    order: StreamOrder<Stream>,
    /// A wait is for the event's record at that moment, so one event serves all waits.
    event: CudaEvent,
}

impl Streams {
    /// Begins with one stream.
    pub fn new(stream: Arc<Stream>) -> Result<Self> {
        let event = stream.cuda.context().new_event(None).map_err(failed("cuEventCreate"))?;
        Ok(Self { order: StreamOrder::new(stream), event })
    }

    /// Returns the stream in use.
    pub fn current(&self) -> &Arc<Stream> {
        &self.order.current
    }

    /// Returns the stream with the last work outside a capture.
    pub fn last_work_stream(&self) -> &CudaStream {
        &self.order.last_work_stream.cuda
    }

    /// Uses a known stream from now on, without an order between it and the one before.
    pub fn set_current(&mut self, stream: &Arc<Stream>) {
        self.order.current = Arc::clone(stream);
    }

    /// Uses the stream of a handle from now on, after the earlier work. `wrap` is called if it is not known.
    pub fn switch(&mut self, wanted: usize, wrap: impl FnOnce() -> Arc<CudaStream>) -> Result<()> {
        let Self { order, event } = self;
        order.switch(|known| handle(&known.cuda) == wanted, || Stream::new(wrap()))?;
        order.wait_for_last_work(
            |current| is_capturing(&current.cuda),
            |later, earlier| wait(event, &later.cuda, &earlier.cuda),
        )
    }

    /// Makes later work on the stream `later` wait for the work already on the stream `earlier`.
    pub fn wait(&self, later: &CudaStream, earlier: &CudaStream) -> Result<()> {
        wait(&self.event, later, earlier)
    }
}

fn wait(event: &CudaEvent, later: &CudaStream, earlier: &CudaStream) -> Result<()> {
    let failed = failed("ordering streams");
    event.record(earlier).map_err(&failed)?;
    later.wait(event).map_err(&failed)
}

/// Which of several streams is in use, and which one carries the last work.
pub(crate) struct StreamOrder<S> {
    /// Each stream that was in use; a short list.
    known: Vec<Arc<S>>,
    current: Arc<S>,
    /// The stream with the last work outside a capture, for which work on other streams must wait.
    last_work_stream: Arc<S>,
}

impl<S> StreamOrder<S> {
    fn new(stream: Arc<S>) -> Self {
        Self { known: vec![Arc::clone(&stream)], current: Arc::clone(&stream), last_work_stream: stream }
    }

    /// Makes the stream for which `is_wanted` holds the current one; makes it first if it is not known.
    fn switch<E>(
        &mut self,
        is_wanted: impl Fn(&S) -> bool,
        make: impl FnOnce() -> std::result::Result<Arc<S>, E>,
    ) -> std::result::Result<(), E> {
        if is_wanted(&self.current) {
            return Ok(());
        }
        self.current = match self.known.iter().find(|stream| is_wanted(stream)) {
            Some(found) => Arc::clone(found),
            None => {
                self.known.push(make()?);
                Arc::clone(&self.known[self.known.len() - 1])
            }
        };
        Ok(())
    }

    /// Makes the current stream wait for the earlier work on another one, unless it is under capture.
    fn wait_for_last_work<E>(
        &mut self,
        is_capturing: impl FnOnce(&S) -> std::result::Result<bool, E>,
        wait: impl FnOnce(&S, &S) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if !Arc::ptr_eq(&self.current, &self.last_work_stream) && !is_capturing(&self.current)? {
            wait(&self.current, &self.last_work_stream)?;
            self.last_work_stream = Arc::clone(&self.current);
        }
        Ok(())
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("current", &handle(&self.order.current.cuda)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Name = &'static str;

    /// Uses a stream and returns the one that it was made to wait for.
    fn use_stream(order: &mut StreamOrder<Name>, name: Name, is_capturing: bool) -> Option<Name> {
        let mut waited = None;
        order.switch(|known| *known == name, || Ok::<_, Error>(Arc::new(name))).expect("nothing fails");
        let wait = |later: &Name, earlier: &Name| {
            assert_eq!(*later, name);
            waited = Some(*earlier);
            Ok::<_, Error>(())
        };
        order.wait_for_last_work(|_| Ok(is_capturing), wait).expect("nothing fails");
        assert_eq!(*order.current, name);
        waited
    }

    #[test]
    fn a_stream_waits_for_the_one_that_was_used_before() {
        let mut order = StreamOrder::new(Arc::new("own"));
        assert_eq!(use_stream(&mut order, "own", false), None);
        assert_eq!(use_stream(&mut order, "a", false), Some("own"));
        assert_eq!(use_stream(&mut order, "a", false), None);
        assert_eq!(use_stream(&mut order, "b", false), Some("a"));
        assert_eq!(use_stream(&mut order, "a", false), Some("b"));
        assert_eq!(order.known.len(), 3);
    }

    #[test]
    fn a_stream_under_capture_waits_for_nothing_and_nothing_waits_for_it() {
        let mut order = StreamOrder::new(Arc::new("own"));
        assert_eq!(use_stream(&mut order, "a", false), Some("own"));
        assert_eq!(use_stream(&mut order, "captured", true), None);
        assert_eq!(use_stream(&mut order, "b", false), Some("a"));
        assert_eq!(use_stream(&mut order, "captured", false), Some("b"));
    }

    #[test]
    fn a_stream_that_cannot_be_made_or_wait_changes_nothing_that_is_ordered() {
        let mut order = StreamOrder::new(Arc::new("own"));
        assert_eq!(order.switch(|known| *known == "a", || Err("no memory")), Err("no memory"));
        assert_eq!(*order.current, "own");
        order.switch(|known| *known == "a", || Ok::<_, Name>(Arc::new("a"))).expect("it is made");
        assert_eq!(order.wait_for_last_work(|_| Ok(false), |_, _| Err("no event")), Err("no event"));
        assert_eq!(use_stream(&mut order, "a", false), Some("own"));
    }
}
