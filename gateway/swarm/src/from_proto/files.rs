//! Secrets and configs of a task, which become files.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use swarm::{config_reference, secret_reference};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::check_count;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::file_mode::file_mode;
use super::mounts::{Mounts, container_path};
use super::request::{TaskRequest, not_expanded};
use crate::dependencies::{Dependencies, Payload};
use crate::plan::TaskFile;
use crate::template::{FILE_MAX, FileContent, Files, expand};

/// The directory of secrets whose targets are no absolute paths.
const SECRETS: &str = "/run/secrets/";

/// The directory of configs whose targets are no absolute paths.
const CONFIGS: &str = "/";

/// The name of the only template language.
const GOLANG: &str = "golang";

/// Limit in bytes for all files of a task, which are in memory twice, and for all templates that they are
/// made from.
const FILES_MAX: usize = 64 << 20;

/// The files of a task, each in place of no other mount.
pub(super) fn files(
    asked: &TaskRequest<'_>,
    dependencies: &Dependencies,
    mounts: &mut Mounts,
) -> Result<Vec<TaskFile>> {
    let references = References {
        asked,
        dependencies,
        contents: RefCell::default(),
        templates: Cell::default(),
        targets: OnceCell::default(),
    };
    let mut files: Vec<TaskFile> = Vec::new();
    let mut bytes: usize = 0;
    let mut add = |field: &str, dir: &str, target: &swarm::FileTarget, content: Arc<[u8]>| {
        check_count(field, "files", files.len())?;
        let file = file(field, dir, target, content)?;
        mounts.reserve(field, &file.destination)?;
        bytes = bytes.saturating_add(file.content.len());
        if bytes > FILES_MAX {
            let why = format!("the files of the task have more than {FILES_MAX} bytes with it");
            return Err(Error::invalid(field, why));
        }
        files.push(file);
        Ok(())
    };
    for (index, reference) in asked.container.secrets.iter().enumerate() {
        let field = format!("container.secrets[{index}]");
        let swarm::SecretReference {
            secret_id,
            secret_name,
            target,
        } = reference;
        let payload = references
            .secret(secret_id)
            .ok_or_else(|| not_found("secret", secret_name, secret_id))?;
        let Some(secret_reference::Target::File(target)) = target else {
            return Err(Error::invalid(field, "it has no file as its target"));
        };
        add(
            &field,
            SECRETS,
            target,
            references.content(&field, secret_id, payload, true)?,
        )?;
    }
    for (index, reference) in asked.container.configs.iter().enumerate() {
        let field = format!("container.configs[{index}]");
        let swarm::ConfigReference {
            config_id,
            config_name,
            target,
        } = reference;
        let payload = references
            .config(config_id)
            .ok_or_else(|| not_found("config", config_name, config_id))?;
        match target {
            Some(config_reference::Target::File(target)) => {
                add(
                    &field,
                    CONFIGS,
                    target,
                    references.content(&field, config_id, payload, false)?,
                )?;
            }
            // Only credential specs use it, and those are refused with the privileges.
            Some(config_reference::Target::Runtime(swarm::RuntimeTarget {})) => {}
            None => return Err(Error::invalid(field, "it has no target")),
        }
    }
    Ok(files)
}

fn not_found(kind: &str, name: &str, id: &str) -> Error {
    Error::not_found(format!(
        "{kind} reference {name:?} ({id:?}) not found: the manager has not sent it"
    ))
}

fn file(
    field: &str,
    dir: &str,
    target: &swarm::FileTarget,
    content: Arc<[u8]>,
) -> Result<TaskFile> {
    let swarm::FileTarget {
        name,
        uid,
        gid,
        mode,
    } = target;
    let number = |part: &str, text: &str| match text {
        "" => Ok(0),
        text => text.parse::<u32>().map_err(|_| {
            Error::invalid(
                format_args!("{field}.file.{part}"),
                format!("{text:?} is no number of an id"),
            )
        }),
    };
    let of_name = format!("{field}.file.name");
    if name.is_empty() || name.ends_with('/') {
        return Err(Error::invalid(of_name, format!("{name:?} names no file")));
    }
    let destination = if name.starts_with('/') {
        container_path(&of_name, name)?
    } else {
        let path = container_path(&of_name, &format!("{dir}{name}"))?;
        if !path.starts_with(dir) || path.as_path() == Path::new(dir.trim_end_matches('/')) {
            return Err(Error::invalid(
                of_name,
                format!("{name:?} leads out of {dir}"),
            ));
        }
        path
    };
    Ok(TaskFile {
        destination,
        content,
        uid: number("uid", uid)?,
        gid: number("gid", gid)?,
        mode: file_mode(&format!("{field}.file.mode"), *mode)?,
    })
}

// === impl References ===

/// Contents by whether they are a secret's, and its id.
type Contents = HashMap<(bool, String), Arc<[u8]>>;

/// The secrets and configs of a task, by id for references and by target for templates.
struct References<'a> {
    asked: &'a TaskRequest<'a>,
    dependencies: &'a Dependencies,
    /// The contents that were made: a task may refer a thousand times to one template.
    contents: RefCell<Contents>,
    /// Bytes of templates that were expanded so far.
    templates: Cell<usize>,
    targets: OnceCell<Targets<'a>>,
}

/// The objects that templates refer to, by name; of several with one name the first.
#[derive(Default)]
struct Targets<'a> {
    /// Ids by target.
    secrets: HashMap<&'a [u8], &'a str>,
    configs: HashMap<&'a [u8], &'a str>,
    /// Values by name, before their own templates are expanded, as docker has it.
    variables: HashMap<&'a [u8], &'a [u8]>,
}

impl<'a> References<'a> {
    fn secret(&self, id: &str) -> Option<Payload<'a>> {
        self.dependencies.secret(id, &self.asked.task.id)
    }

    fn config(&self, id: &str) -> Option<Payload<'a>> {
        self.dependencies.config(id)
    }

    /// The content of a file; expanded, once for all references, if it is a template.
    fn content(
        &self,
        field: &str,
        id: &str,
        payload: Payload<'_>,
        is_secret: bool,
    ) -> Result<Arc<[u8]>> {
        let key = (is_secret, id.to_owned());
        if let Some(made) = self.contents.borrow().get(&key) {
            return Ok(Arc::clone(made));
        }
        let made = self.make(field, payload, is_secret)?;
        self.contents.borrow_mut().insert(key, Arc::clone(&made));
        Ok(made)
    }

    fn make(&self, field: &str, payload: Payload<'_>, is_secret: bool) -> Result<Arc<[u8]>> {
        match payload.templating {
            None => Ok(payload.data.into()),
            Some(GOLANG) => self.expanded(field, payload.data, is_secret),
            Some(other) => Err(Error::unimplemented(format!(
                "{field}: there is no template language {other:?}"
            ))),
        }
    }

    fn expanded(&self, field: &str, template: &[u8], is_secret: bool) -> Result<Arc<[u8]>> {
        let bytes = self.templates.get().saturating_add(template.len());
        if bytes > FILES_MAX {
            let why = format!("the templates of the task have more than {FILES_MAX} bytes with it");
            return Err(Error::invalid(field, why));
        }
        self.templates.set(bytes);
        match expand(template, &self.asked.facts, self, FILE_MAX) {
            Ok(made) => Ok(made.bytes.into()),
            // Words of a template may be those of a secret.
            Err(error) => {
                let error = if is_secret {
                    error.without_name()
                } else {
                    error
                };
                Err(not_expanded(field, error))
            }
        }
    }

    fn targets(&self) -> &Targets<'a> {
        self.targets
            .get_or_init(|| Targets::of(self.asked.container))
    }
}

impl<'a> Targets<'a> {
    fn of(container: &'a swarm::ContainerSpec) -> Self {
        let mut targets = Self::default();
        for reference in &container.secrets {
            if let Some(secret_reference::Target::File(file)) = &reference.target {
                targets
                    .secrets
                    .entry(file.name.as_bytes())
                    .or_insert(&reference.secret_id);
            }
        }
        for reference in &container.configs {
            if let Some(config_reference::Target::File(file)) = &reference.target {
                targets
                    .configs
                    .entry(file.name.as_bytes())
                    .or_insert(&reference.config_id);
            }
        }
        for (name, value) in container
            .env
            .iter()
            .filter_map(|variable| variable.split_once('='))
        {
            targets
                .variables
                .entry(name.as_bytes())
                .or_insert(value.as_bytes());
        }
        targets
    }
}

impl Files for References<'_> {
    fn secret(&self, target: &[u8]) -> FileContent<'_> {
        Some(Cow::Borrowed(
            Self::secret(self, self.targets().secrets.get(target)?)?.data,
        ))
    }

    fn config(&self, target: &[u8]) -> FileContent<'_> {
        Some(Cow::Borrowed(
            Self::config(self, self.targets().configs.get(target)?)?.data,
        ))
    }

    fn env(&self, name: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(
            self.targets()
                .variables
                .get(name)
                .copied()
                .unwrap_or_default(),
        )
    }
}
