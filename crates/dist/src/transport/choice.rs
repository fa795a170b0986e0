//! Which transport a group takes: the caller's word, the environment's, or that of its addresses.

use super::{Address, Patience, Sockets, Transport};
use gumball_spec::{Error, RanksError, Result};

/// The transports that a group of processes can be asked to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// That of the addresses.
    #[default]
    Auto,
    /// Unix sockets between processes of one host.
    Unix,
    /// TCP between processes.
    Tcp,
}

impl TransportKind {
    const ALL: [(TransportKind, &'static str); 3] =
        [(Self::Auto, "auto"), (Self::Unix, "unix"), (Self::Tcp, "tcp")];

    /// Returns the kind of a name.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if there is none.
    pub fn of_name(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| kind).ok_or_else(|| Error::Unknown {
            parameter: "transport",
            name: name.to_owned(),
            known: Self::ALL.map(|(_, name)| name).join(", "),
        })
    }

    /// Returns the kind that `GUMBALL_DIST_TRANSPORT` names, `Auto` if it is not set.
    ///
    /// # Errors
    /// Those of [`TransportKind::of_name`].
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        variable("GUMBALL_DIST_TRANSPORT").map_or(Ok(Self::Auto), |name| Self::of_name(&name))
    }
}

/// Connects a rank by the transport of a kind.
///
/// # Errors
/// - [`RanksError::Unavailable`] if that kind is forced and does not fit the addresses.
/// - Those of [`Sockets::connect`].
pub fn choose(
    kind: TransportKind,
    rank: usize,
    addresses: &[Address],
    patience: impl Into<Patience>,
) -> Result<Box<dyn Transport>> {
    let unfit = |what: &str, wanted: &str| RanksError::Unavailable {
        what: format!("transport {what}"),
        reason: format!("it needs addresses that begin with {wanted}, for all ranks"),
    };
    match kind {
        TransportKind::Unix if !addresses.iter().all(|address| matches!(address, Address::Unix(_))) => {
            return Err(unfit("unix", "unix:").into());
        }
        TransportKind::Tcp if !addresses.iter().all(|address| matches!(address, Address::Tcp(_))) => {
            return Err(unfit("tcp", "tcp:").into());
        }
        _ => {}
    }
    Ok(Box::new(Sockets::connect(rank, addresses, patience)?))
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn alone() -> Vec<Address> {
        vec![Address::Unix(std::env::temp_dir().join(format!("gumball-{}-alone", std::process::id())))]
    }

    #[test]
    fn a_transport_that_does_not_fit_or_is_not_known_is_an_error_and_auto_is_that_of_the_addresses() {
        let second = Duration::from_secs(1);
        let error = choose(TransportKind::Tcp, 0, &alone(), second).unwrap_err();
        let said = "no transport tcp: it needs addresses that begin with tcp:, for all ranks";
        assert_eq!(error.to_string(), said);
        for name in ["ucx", "onesided", "nccl"] {
            let error = TransportKind::of_environment(|_| Some(name.to_owned())).unwrap_err();
            let said = format!("transport {name:?} is not known; known are: auto, unix, tcp");
            assert_eq!(error.to_string(), said);
        }
        assert_eq!(choose(TransportKind::Auto, 0, &alone(), second).unwrap().name(), "unix");
    }
}
