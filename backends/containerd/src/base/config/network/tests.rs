//! Checks of the section `[network]`, and what its keys are without a value.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::BridgeDriverChoice::{Cni, Native};
use super::*;

/// A configuration with these keys.
fn with(
    driver: Option<BridgeDriverChoice>,
    isolation: Option<IsolationChoice>,
    direct_routing: Option<bool>,
) -> NetworkConfig {
    let mut config = NetworkConfig {
        isolation,
        direct_routing,
        ..NetworkConfig::default()
    };
    config.bridge.driver = driver;
    config
}

/// Returns the configuration as it is on a node with these defaults.
fn settled(config: &NetworkConfig, defaults: NetworkDefaults) -> NetworkConfig {
    let mut settled = config.clone();
    settled.settle(defaults);
    settled
}

#[test]
fn keys_that_are_not_set_are_as_the_node_has_them() {
    use IsolationChoice::{Bridge, None as All, Owner};
    let former = NetworkDefaults::Cni;
    let new = NetworkDefaults::Native;
    for (defaults, driver, isolation, direct_routing, expected) in [
        (new, None, None, None, (Native, Bridge, false)),
        (former, None, None, None, (Cni, All, true)),
        // With plugins all is open: else a node whose operator wants them would not start.
        (new, Some(Cni), None, None, (Cni, All, true)),
        (former, Some(Cni), None, None, (Cni, All, true)),
        (new, Some(Native), None, None, (Native, Bridge, false)),
        // The driver closes nothing that was open.
        (former, Some(Native), None, None, (Native, All, true)),
        (new, None, Some(All), None, (Native, All, false)),
        (new, None, Some(Owner), None, (Native, Owner, false)),
        (new, None, None, Some(true), (Native, Bridge, true)),
        (new, None, Some(All), Some(true), (Native, All, true)),
        (
            former,
            Some(Native),
            Some(Bridge),
            None,
            (Native, Bridge, true),
        ),
        (
            former,
            Some(Native),
            None,
            Some(false),
            (Native, All, false),
        ),
    ] {
        let config = with(driver, isolation, direct_routing);
        let settled = settled(&config, defaults);
        let found = (
            settled.bridge.driver(),
            settled.isolation(),
            settled.direct_routing(),
        );
        assert_eq!(found, expected, "{defaults:?} {config:?}");
        assert_eq!(settled.check(), Ok(()), "{defaults:?} {config:?}");
    }
}

#[test]
fn what_closes_something_is_refused_on_a_node_whose_plugins_leave_it_open() {
    for (isolation, direct_routing, key) in [
        (Some(IsolationChoice::Bridge), None, "isolation"),
        (Some(IsolationChoice::Owner), None, "isolation"),
        (None, Some(false), "direct_routing"),
        (Some(IsolationChoice::None), Some(false), "direct_routing"),
    ] {
        let config = with(None, isolation, direct_routing);
        // The files alone do not say it.
        assert_eq!(config.check(), Ok(()));
        let on = |defaults| {
            let checked = settled(&config, defaults).check();
            checked.err().map(|(key, _)| key)
        };
        assert_eq!(on(NetworkDefaults::Cni), Some(key));
        assert_eq!(on(NetworkDefaults::Native), None);
    }
}

proptest! {
    #[test]
    fn settled_keys_stay_and_those_that_are_set_win(
        driver in option::of(select(vec![Cni, Native])),
        isolation in option::of(select(vec![
            IsolationChoice::None,
            IsolationChoice::Bridge,
            IsolationChoice::Owner,
        ])),
        direct_routing in option::of(any::<bool>()),
        is_new in any::<bool>(),
    ) {
        let defaults = NetworkDefaults::ALL[usize::from(is_new)];
        let other = NetworkDefaults::ALL[usize::from(!is_new)];
        let config = with(driver, isolation, direct_routing);
        let first = settled(&config, defaults);
        let driver = driver.unwrap_or(defaults.driver());
        prop_assert_eq!(first.bridge.driver, Some(driver));
        prop_assert!(isolation.is_none() || first.isolation == isolation);
        prop_assert!(direct_routing.is_none() || first.direct_routing == direct_routing);
        // Neither another start nor other defaults change it.
        prop_assert!(!first.depends_on_defaults());
        prop_assert_eq!(&settled(&first, other), &first);
        // Nothing is closed by default where plugins leave it open, nor on a node that had it open.
        if driver == Cni || defaults == NetworkDefaults::Cni {
            prop_assert!(isolation.is_some() || first.isolation() == IsolationChoice::None);
            prop_assert!(direct_routing.is_some() || first.direct_routing());
        }
        let is_same = settled(&config, other) == first;
        prop_assert_eq!(config.depends_on_defaults(), !is_same);
    }
}

#[test]
fn what_only_the_native_driver_closes_is_refused_with_plugins() {
    let wrong = |change: &dyn Fn(&mut NetworkConfig), is_native: bool| {
        let mut config = NetworkConfig::default();
        config.bridge.driver = Some(if is_native { Native } else { Cni });
        change(&mut config);
        config.check().err().map(|(key, _)| key)
    };
    let isolated = |choice| move |config: &mut NetworkConfig| config.isolation = Some(choice);
    let closed = |config: &mut NetworkConfig| config.direct_routing = Some(false);
    let pinned = |choice| move |config: &mut NetworkConfig| config.bridge.pin = choice;
    let all_pinned = pinned(PinChoice::All);
    let open = isolated(IsolationChoice::None);
    let by_bridge = isolated(IsolationChoice::Bridge);
    let by_owner = isolated(IsolationChoice::Owner);
    for is_native in [true, false] {
        let refused = |key| (!is_native).then_some(key);
        assert_eq!(wrong(&open, is_native), None);
        assert_eq!(wrong(&by_bridge, is_native), refused("isolation"));
        assert_eq!(wrong(&by_owner, is_native), refused("isolation"));
        assert_eq!(wrong(&closed, is_native), refused("direct_routing"));
        assert_eq!(wrong(&all_pinned, is_native), refused("bridge.pin"));
        assert_eq!(wrong(&pinned(PinChoice::None), is_native), None);
        for (a, b, is_name) in [
            ("switchyard0", "swy-2", true),
            ("switchyard0", "switchyard0", true),
            ("switchyard0", "", false),
            ("sw*", "switchyard0", false),
            ("switchyard0", "sixteen-bytes-xx", false),
            ("a b", "switchyard0", false),
        ] {
            let pair = |config: &mut NetworkConfig| {
                config.isolation_allow = vec![(a.to_owned(), b.to_owned())];
            };
            let expected = (!is_name).then_some("isolation_allow");
            assert_eq!(wrong(&pair, is_native), expected, "{a:?} {b:?}");
        }
    }
}
