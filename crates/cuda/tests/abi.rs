//! Host and kernels agree on the sizes and offsets of the structs that they share.
#![cfg(feature = "emulator")]

use gumball_cuda::{Cache, Emulator, layout};

#[test]
fn host_and_kernels_lay_out_alike() {
    match Emulator::new(&Cache::user()) {
        Ok(emulator) => assert_eq!(emulator.layout(), layout()),
        Err(error) => println!("skipped: {error}"),
    }
}
