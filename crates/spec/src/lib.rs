//! The definition: parameters, errors, numbers and the oracle of every stage.
