//! Every kernel compiles for every architecture, without a warning and without a GPU.
//!
//! Needs NVRTC, as from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its libnvrtc.so.13); skips with
//! a message where there is none. `GUMBALL_CUBINS` names a folder to leave the machine code in, for a look at
//! registers and spills (`ci/cuda-resources`).

use gumball_cuda::{Arch, Nvrtc, PROGRAMS};

const ARCHS: [Arch; 4] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch { major: 10, minor: 0 },
    Arch { major: 12, minor: 0 },
];

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => return println!("skipped: {error}"),
    };
    for arch in ARCHS {
        for program in PROGRAMS {
            let compiled = nvrtc.compile(program, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.log, "", "{} for {arch}", program.name);
            assert!(compiled.cubin.starts_with(b"\x7FELF"), "{} for {arch}", program.name);
            for kernel in program.kernels {
                let section = format!(".text.{kernel}\0");
                let found = compiled.cubin.windows(section.len()).any(|bytes| bytes == section.as_bytes());
                assert!(found, "{kernel} is not in {} for {arch}", program.name);
            }
            if let Some(folder) = std::env::var_os("GUMBALL_CUBINS") {
                let name = format!("{}.{arch}.cubin", program.name);
                std::fs::write(std::path::Path::new(&folder).join(name), compiled.cubin).expect("it is kept");
            }
        }
    }
}
