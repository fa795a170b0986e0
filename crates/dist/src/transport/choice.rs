//! Which transport a group takes: the caller's word, the environment's, or the best there is.

use super::{Address, Patience, Sockets, Transport};
use crate::error::{Error, Result};

/// The transports that a group of processes can be asked to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// The best there is, with a warning where a better one is missing.
    #[default]
    Auto,
    /// One-sided writes into the memory of GPUs of one host. Not there yet.
    OneSided,
    /// NVIDIA's library of collectives. Not there yet.
    Nccl,
    /// Unix sockets between processes of one host.
    Unix,
    /// TCP between processes.
    Tcp,
}

impl TransportKind {
    const ALL: [(TransportKind, &'static str); 5] = [
        (Self::Auto, "auto"),
        (Self::OneSided, "onesided"),
        (Self::Nccl, "nccl"),
        (Self::Unix, "unix"),
        (Self::Tcp, "tcp"),
    ];

    /// Returns the kind of a name.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unknown`] if there is none.
    pub fn of_name(name: &str) -> gumball_spec::Result<Self> {
        let found = Self::ALL.into_iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| kind).ok_or_else(|| gumball_spec::Error::Unknown {
            parameter: "transport",
            name: name.to_owned(),
            known: Self::ALL.map(|(_, name)| name).join(", "),
        })
    }

    /// Returns the kind that `GUMBALL_DIST_TRANSPORT` names, `Auto` if it is not set.
    ///
    /// # Errors
    /// Those of [`TransportKind::of_name`].
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> gumball_spec::Result<Self> {
        variable("GUMBALL_DIST_TRANSPORT").map_or(Ok(Self::Auto), |name| Self::of_name(&name))
    }

    /// Returns why this build has no such transport, if it has none.
    fn missing(self) -> Option<&'static str> {
        let is_missing = matches!(self, Self::OneSided | Self::Nccl);
        is_missing.then_some("this build moves bytes between hosts' memory only; take unix, tcp or auto")
    }
}

/// A transport, and what was chosen against.
#[derive(Debug)]
pub struct Chosen {
    /// The transport, connected.
    pub transport: Box<dyn Transport>,
    /// What the choice costs, to be shown once; `None` if nothing better was looked for.
    pub warning: Option<String>,
}

/// Connects a rank by the transport of a kind. `on_gpus` says that the logits lie on GPUs, for which `Auto` looks for a transport
/// between them first.
///
/// # Errors
/// - [`Error::Unavailable`] if that kind is forced and missing, or does not fit the addresses.
/// - Those of [`Sockets::connect`].
pub fn choose(
    kind: TransportKind,
    on_gpus: bool,
    rank: usize,
    addresses: &[Address],
    patience: impl Into<Patience>,
) -> Result<Chosen> {
    if let Some(reason) = kind.missing() {
        let name = TransportKind::ALL.iter().find(|(other, _)| *other == kind).map_or("", |(_, name)| name);
        return Err(Error::Unavailable { what: format!("transport {name}"), reason: reason.to_owned() });
    }
    let unfit = |what: &str, wanted: &str| Error::Unavailable {
        what: format!("transport {what}"),
        reason: format!("it needs addresses that begin with {wanted}, for all ranks"),
    };
    match kind {
        TransportKind::Unix if !addresses.iter().all(|address| matches!(address, Address::Unix(_))) => {
            return Err(unfit("unix", "unix:"));
        }
        TransportKind::Tcp if !addresses.iter().all(|address| matches!(address, Address::Tcp(_))) => {
            return Err(unfit("tcp", "tcp:"));
        }
        _ => {}
    }
    let transport = Sockets::connect(rank, addresses, patience)?;
    let warning = (kind == TransportKind::Auto && on_gpus).then(|| {
        let name = transport.name();
        format!("no transport between GPUs in this build: logits go through the hosts' memory, by {name}")
    });
    Ok(Chosen { transport: Box::new(transport), warning })
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn alone() -> Vec<Address> {
        vec![Address::Unix(std::env::temp_dir().join(format!("gumball-{}-alone", std::process::id())))]
    }

    #[test]
    fn a_transport_that_is_forced_and_missing_is_an_error_that_says_why() {
        for name in ["onesided", "nccl"] {
            let kind = TransportKind::of_environment(|_| Some(name.to_owned())).unwrap();
            let error = choose(kind, true, 0, &alone(), Duration::from_secs(1)).unwrap_err();
            let reason = "this build moves bytes between hosts' memory only; take unix, tcp or auto";
            assert_eq!(error.to_string(), format!("no transport {name}: {reason}"));
        }
        let error = choose(TransportKind::Tcp, false, 0, &alone(), Duration::from_secs(1)).unwrap_err();
        let said = "no transport tcp: it needs addresses that begin with tcp:, for all ranks";
        assert_eq!(error.to_string(), said);
        let error = TransportKind::of_name("ucx").unwrap_err();
        let said = "transport \"ucx\" is not known; known are: auto, onesided, nccl, unix, tcp";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn auto_falls_back_with_one_warning() {
        let chosen = choose(TransportKind::Auto, true, 0, &alone(), Duration::from_secs(1)).unwrap();
        let said = "no transport between GPUs in this build: logits go through the hosts' memory, by unix";
        assert_eq!((chosen.transport.name(), chosen.warning.as_deref()), ("unix", Some(said)));
        drop(chosen);
        let chosen = choose(TransportKind::Auto, false, 0, &alone(), Duration::from_secs(1)).unwrap();
        assert_eq!(chosen.warning, None);
    }
}
