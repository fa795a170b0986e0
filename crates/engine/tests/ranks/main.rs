//! A pool over ranks gives what a pool of one process gives, bit for bit, under every layout, with any split
//! of the vocabulary, and with any parameters.

#[path = "../../examples/05_own_transport.rs"]
mod own_transport;

mod batch;
mod bytes;
mod calls;
mod cases;
#[cfg(feature = "emulator")]
mod device_drafts;
#[cfg(feature = "emulator")]
mod device_failures;
#[cfg(feature = "emulator")]
mod device_transports;
#[cfg(feature = "emulator")]
mod device_turns;
#[cfg(feature = "emulator")]
mod devices;
mod failures;
mod faults;
#[cfg(unix)]
mod hostile;
mod processes;
mod steps;
mod verifications;

#[test]
fn a_transport_of_the_programs_own_serves() {
    own_transport::main().unwrap();
}
