//! The lists that are measured, and what they are made of.

use std::collections::BTreeMap;

use prost::Message;
use switchyard_core::Result;
use switchyard_cri::fuzzing::container_spec;
use switchyard_runtime_spec::ImageConfig;

use crate::host::{CDI_DEVICES, build_spec_of};
use crate::{agents, kubelets, managers};

/// Factor between the lengths of the two lists.
pub(crate) const ONE_TO: usize = 10;

/// A short list where a task may have any number, and where it may have a thousand.
pub(crate) const MANY: usize = 2000;
pub(crate) const FEW: usize = 100;

/// A list of a request.
pub(crate) struct List {
    pub(crate) name: &'static str,
    /// The length of the shorter one.
    pub(crate) length: usize,
    /// A request with a list of this length.
    pub(crate) request: Box<dyn Fn(usize) -> Vec<u8>>,
    /// The conversion that is measured.
    pub(crate) convert: fn(&[u8]) -> Result<()>,
}

/// The name, the length of the shorter list, and what fills it.
pub(crate) type Fill<T> = (&'static str, usize, fn(&mut T, usize));

pub(crate) fn all() -> Vec<List> {
    const {
        assert!(
            CDI_DEVICES >= FEW * ONE_TO,
            "the vendor has too few devices"
        )
    };
    let mut lists = kubelets::containers();
    lists.extend(kubelets::pods());
    lists.extend(managers::services());
    lists.extend(agents::tasks());
    lists.push(environment_of_image());
    lists
}

/// The `ENV` of an image, whose lines are all that the bytes are.
fn environment_of_image() -> List {
    List {
        name: "ENV of an image",
        length: MANY,
        request: Box::new(|count| texts(count, "N#=1").join("\n").into_bytes()),
        convert: |bytes| {
            let task = container_spec(&kubelets::request(kubelets::container()).encode_to_vec())?;
            let env = String::from_utf8_lossy(bytes)
                .lines()
                .map(str::to_owned)
                .collect();
            build_spec_of(
                &task,
                &ImageConfig {
                    env,
                    ..ImageConfig::default()
                },
            )
        },
    }
}

/// Texts, each with its number.
pub(crate) fn texts(count: usize, of: &str) -> Vec<String> {
    (0..count)
        .map(|number| of.replace('#', &number.to_string()))
        .collect()
}

pub(crate) fn entries(count: usize, key: &str) -> BTreeMap<String, String> {
    texts(count, key)
        .into_iter()
        .map(|key| (key, "1".to_owned()))
        .collect()
}

/// Addresses, fewer than 62,500.
pub(crate) fn addresses(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("10.0.{}.{}", number / 250, number % 250))
        .collect()
}
