//! Which transport a group takes: the caller's word, or the environment's.

use super::{Address, Patience, Transport};
use gumball_spec::{Error, RanksError, Result};

/// The transports that a group can be asked to take, each of which it takes or refuses with the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// For rows on devices `OneSided` where these reach each other's memory, else `Nccl`; for rows in host
    /// memory what the ranks find each other by.
    #[default]
    Auto,
    /// Stores of devices into each other's memory.
    OneSided,
    /// Messages of NCCL between GPUs.
    Nccl,
    /// The process group of torch that a program in Python has.
    Torch,
    /// Unix sockets between processes of one host.
    Unix,
    /// Memory of one process, whose threads are the ranks.
    Threads,
}

impl TransportKind {
    const ALL: [(TransportKind, &'static str); 6] = [
        (Self::Auto, "auto"),
        (Self::OneSided, "onesided"),
        (Self::Nccl, "nccl"),
        (Self::Torch, "torch"),
        (Self::Unix, "unix"),
        (Self::Threads, "threads"),
    ];

    /// Returns the kind of a name.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if there is none.
    pub fn of_name(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(_, known)| *known == name);
        found
            .map(|(kind, _)| kind)
            .ok_or_else(|| Error::unknown("transport", name, Self::ALL.map(|(_, name)| name).join(", ")))
    }

    /// Returns the kind that `GUMBALL_DIST_TRANSPORT` names, `Auto` if it is not set.
    ///
    /// # Errors
    /// The errors of [`TransportKind::of_name`].
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        variable("GUMBALL_DIST_TRANSPORT").map_or(Ok(Self::Auto), |name| Self::of_name(&name))
    }

    /// Checks that the rows of a pool can travel so: on a device, or in host memory.
    ///
    /// # Errors
    /// - [`RanksError::Unavailable`] with the reason.
    pub fn check(self, on_device: bool) -> Result<()> {
        match (self, on_device) {
            (Self::OneSided | Self::Nccl, false) => {
                Err(self.refused("rows in host memory take unix, torch or threads"))
            }
            (Self::Auto | Self::OneSided | Self::Nccl, _) | (_, false) => Ok(()),
            (_, true) => Err(self.refused("rows on devices take onesided or nccl")),
        }
    }

    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(kind, _)| *kind == self).expect("it has all").1
    }

    /// Returns the error of a transport that cannot serve.
    #[must_use]
    pub fn refused(self, reason: &str) -> Error {
        let what = format!("transport {}", self.name());
        RanksError::Unavailable { what, reason: reason.to_owned() }.into()
    }
}

/// Connects a rank with processes that listen at addresses, for a pool whose rows lie on a device or in host
/// memory.
///
/// # Errors
/// - [`RanksError::Unavailable`] if the kind does not serve such rows, or takes no addresses.
/// - The errors of [`Sockets::connect`](super::Sockets::connect).
pub fn choose(
    kind: TransportKind,
    on_device: bool,
    rank: usize,
    addresses: &[Address],
    patience: impl Into<Patience>,
) -> Result<Box<dyn Transport>> {
    kind.check(on_device)?;
    match kind {
        TransportKind::Torch => Err(kind.refused("it takes a process group of torch, and no addresses")),
        TransportKind::Threads => Err(kind.refused("it takes ranks of `threads()`, and no addresses")),
        #[cfg(unix)]
        _ => Ok(Box::new(super::Sockets::connect(rank, addresses, patience)?)),
        #[cfg(not(unix))]
        _ => {
            let _ = (rank, addresses, patience.into());
            Err(TransportKind::Unix.refused("this system has no Unix sockets"))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use super::TransportKind::{Auto, Nccl, OneSided, Threads, Torch, Unix};
    use super::*;

    #[test]
    fn a_transport_that_cannot_serve_is_refused_with_the_reason() {
        let socket = std::env::temp_dir().join(format!("gumball-{}-alone", std::process::id()));
        let connect = |kind, on_device| {
            choose(kind, on_device, 0, &[Address::Unix(socket.clone())], Duration::from_secs(1))
        };
        for (kind, on_device, said) in [
            (OneSided, false, "no transport onesided: rows in host memory take unix, torch or threads"),
            (Nccl, false, "no transport nccl: rows in host memory take unix, torch or threads"),
            (Torch, false, "no transport torch: it takes a process group of torch, and no addresses"),
            (Threads, false, "no transport threads: it takes ranks of `threads()`, and no addresses"),
            (Unix, true, "no transport unix: rows on devices take onesided or nccl"),
            (Torch, true, "no transport torch: rows on devices take onesided or nccl"),
            (Threads, true, "no transport threads: rows on devices take onesided or nccl"),
        ] {
            assert_eq!(connect(kind, on_device).unwrap_err().to_string(), said);
        }
        for (kind, on_device) in [(Auto, false), (Unix, false), (Auto, true), (OneSided, true), (Nccl, true)]
        {
            assert_eq!(connect(kind, on_device).unwrap().name(), "unix");
        }
        for name in ["ucx", "tcp"] {
            let error = TransportKind::of_environment(|_| Some(name.to_owned())).unwrap_err();
            let known = "known are: auto, onesided, nccl, torch, unix, threads";
            assert_eq!(error.to_string(), format!("transport {name:?} is not known; {known}"));
        }
    }
}
