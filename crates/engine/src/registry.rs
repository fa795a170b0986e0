//! The registry: routes by name.

use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use gumball_spec::{Error, Result};

use crate::probabilities::Probabilities;
use crate::route::{Oracle, Race, Route};

/// Routes by name; names are unique, and a registered route stays.
#[derive(Debug)]
pub struct Registry {
    routes: RwLock<Vec<Arc<dyn Route>>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Makes a registry with the routes that are always there.
    #[must_use]
    pub fn new() -> Self {
        Self { routes: RwLock::new(vec![Arc::new(Race), Arc::new(Probabilities), Arc::new(Oracle)]) }
    }

    /// Adds a route.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if a route of that name is there already.
    pub fn register(&self, route: Arc<dyn Route>) -> Result<()> {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.iter().any(|known| known.name() == route.name()) {
            return Err(Error::out_of_range("route", route.name(), "a name that is not registered yet"));
        }
        routes.push(route);
        Ok(())
    }

    /// Returns the route of a name.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if there is none; it lists those there are.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Route>> {
        let found = self.all().into_iter().find(|route| route.name() == name);
        found.ok_or_else(|| Error::Unknown {
            parameter: "route",
            name: name.to_owned(),
            known: self.all().iter().map(|route| route.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Returns all routes, in the order they were registered.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn Route>> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the registry in which samplers and pools look up the route they are asked for.
#[must_use]
pub fn routes() -> &'static Registry {
    static ROUTES: LazyLock<Registry> = LazyLock::new(Registry::new);
    &ROUTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_route_is_named_with_the_known_ones() {
        let error = Registry::new().get("rase").unwrap_err();
        let said =
            "route \"rase\" is not known; known are: race, probabilities, oracle; do you mean \"race\"?";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn a_name_is_registered_once() {
        let registry = Registry::new();
        let error = registry.register(Arc::new(Race)).unwrap_err();
        assert_eq!(error.to_string(), "route is race, but must be a name that is not registered yet");
        assert_eq!(registry.all().len(), 3);
    }
}
