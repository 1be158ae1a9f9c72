//! User namespaces: the mapping between ids inside and ids of the host.

/// A user namespace to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserNamespace {
    /// User ids.
    pub uids: IdMap,
    /// Group ids.
    pub gids: IdMap,
}

/// The mapping of ids inside to ids of the host. It always contains the id 0 inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap {
    ranges: Vec<IdRange>,
}

/// A mapped range of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first one inside.
    pub inside: u32,
    /// The host id that it is mapped to.
    pub host: u32,
    /// The number of ids.
    pub length: u32,
}

impl IdMap {
    /// A map of these ranges.
    ///
    /// # Errors
    /// The reason, for people, if the ranges overlap, are empty or too long, leave out the id 0 inside, or
    /// map it to the host's root.
    pub fn new(ranges: Vec<IdRange>) -> Result<Self, String> {
        for (index, range) in ranges.iter().enumerate() {
            let fits = |first: u32| range.length > 0 && first.checked_add(range.length).is_some();
            if !fits(range.inside) || !fits(range.host) {
                return Err(format!("{range:?} is empty or ends beyond the highest id"));
            }
            let meets = |a: u32, b: u32, length: u32| a < b + length && b < a + range.length;
            // Compare with earlier ranges only; later ones are compared with this one in their own iteration.
            if ranges.iter().take(index).any(|other| {
                meets(range.inside, other.inside, other.length)
                    || meets(range.host, other.host, other.length)
            }) {
                return Err("two of its ranges overlap".to_owned());
            }
        }
        let map = Self { ranges };
        match map.host(0) {
            Some(0) => Err("the root inside would be the root of the host".to_owned()),
            Some(_) => Ok(map),
            None => Err("the id 0 inside is not among its ranges".to_owned()),
        }
    }

    /// The ranges.
    #[must_use]
    pub fn ranges(&self) -> &[IdRange] {
        &self.ranges
    }

    /// The host id of an id inside; `None` if it is not mapped.
    #[must_use]
    pub fn host(&self, inside: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let above = inside
                .checked_sub(range.inside)
                .filter(|above| *above < range.length)?;
            Some(range.host + above)
        })
    }

    /// The id inside of a host id; `None` if it is not mapped.
    #[must_use]
    pub fn inside(&self, host: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let above = host
                .checked_sub(range.host)
                .filter(|above| *above < range.length)?;
            Some(range.inside + above)
        })
    }

    /// The host id of root inside.
    #[must_use]
    pub fn root(&self) -> u32 {
        self.host(0)
            .expect("a map without the root inside is never made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(inside: u32, host: u32, length: u32) -> IdRange {
        IdRange {
            inside,
            host,
            length,
        }
    }

    #[test]
    fn ids_map_only_within_their_range() {
        let map = IdMap::new(vec![range(0, 100_000, 1000), range(5000, 300_000, 1)]).unwrap();
        assert_eq!(
            (map.root(), map.host(999), map.host(1000)),
            (100_000, Some(100_999), None)
        );
        assert_eq!((map.host(5000), map.host(5001)), (Some(300_000), None));
        assert_eq!(
            (map.inside(100_999), map.inside(300_000)),
            (Some(999), Some(5000))
        );
        assert_eq!(
            (map.inside(99_999), map.inside(101_000), map.inside(0)),
            (None, None, None)
        );
    }

    #[test]
    fn invalid_id_map_is_rejected() {
        for bad in [
            vec![],
            vec![range(1, 100_000, 10)],
            vec![range(0, 0, 10)],
            vec![range(0, 100_000, 0)],
            vec![range(0, u32::MAX - 5, 10)],
            vec![range(0, 100_000, 10), range(9, 200_000, 10)],
            vec![range(0, 100_000, 10), range(10, 100_009, 10)],
        ] {
            assert!(IdMap::new(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
