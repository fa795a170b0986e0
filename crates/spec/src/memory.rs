//! Memory whose size a caller's number decides: where the system refuses it, that is an error, and not the
//! end of the process.

use crate::error::{Error, Result};

/// Reserves memory in a list for `count` elements in all.
///
/// # Errors
/// - [`Error::Unavailable`] if the system refuses the memory; the list is as it was.
pub fn reserve<T>(resource: &'static str, list: &mut Vec<T>, count: usize) -> Result<()> {
    list.try_reserve_exact(count.saturating_sub(list.len())).map_err(|_| {
        let each = size_of::<T>();
        let reason = format!("the system refused {count} elements of {each} bytes; ask for fewer");
        Error::Unavailable { resource, reason }
    })
}

/// Makes an empty list with the capacity for `count` elements, which are not touched before they are used.
///
/// # Errors
/// The errors of [`reserve`].
pub fn with_capacity<T>(resource: &'static str, count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    reserve(resource, &mut list, count)?;
    Ok(list)
}

/// Makes a list of `count` equal elements.
///
/// # Errors
/// The errors of [`reserve`].
pub fn filled<T: Clone>(resource: &'static str, value: T, count: usize) -> Result<Vec<T>> {
    let mut list = with_capacity(resource, count)?;
    list.resize(count, value);
    Ok(list)
}

/// Collects items whose number is known.
///
/// # Errors
/// The errors of [`reserve`].
pub fn collected<T>(resource: &'static str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = with_capacity(resource, items.len())?;
    list.extend(items);
    Ok(list)
}

/// Multiplies sizes that callers name.
///
/// # Errors
/// - [`Error::Unavailable`] if no machine has as many bytes.
pub fn product(resource: &'static str, factors: &[usize]) -> Result<usize> {
    let bytes = factors.iter().try_fold(1usize, |bytes, factor| bytes.checked_mul(*factor));
    bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(|| {
        let factors: Vec<String> = factors.iter().map(ToString::to_string).collect();
        let reason = format!("{} bytes are more than any machine has; ask for fewer", factors.join(" x "));
        Error::Unavailable { resource, reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_refused_is_an_error_that_says_how_much() {
        let error = filled("memory for slots", 0u64, usize::MAX).unwrap_err();
        let message = format!(
            "no memory for slots: the system refused {} elements of 8 bytes; ask for fewer",
            usize::MAX
        );
        assert_eq!(error.to_string(), message);
        // Inside the address space, and beyond any system's memory; of 32 bits a system has as much.
        #[cfg(target_pointer_width = "64")]
        assert!(with_capacity::<u64>("memory for slots", isize::MAX as usize / 8).is_err());
        assert_eq!(filled("memory for slots", 7, 3), Ok(vec![7, 7, 7]));
        assert_eq!(collected("memory for slots", 0..3), Ok(vec![0, 1, 2]));
    }

    #[test]
    fn a_product_that_does_not_fit_is_an_error_and_does_not_wrap() {
        assert_eq!(product("memory for rows", &[3, 4, 5]), Ok(60));
        assert_eq!(product("memory for rows", &[]), Ok(1));
        let quarter = usize::MAX / 4 + 1;
        let error = product("memory for rows", &[quarter, 4]).unwrap_err();
        let message =
            format!("no memory for rows: {quarter} x 4 bytes are more than any machine has; ask for fewer");
        assert_eq!(error.to_string(), message);
        assert!(product("memory for rows", &[1 << (usize::BITS / 2), 1 << (usize::BITS / 2 - 1)]).is_err());
    }
}
