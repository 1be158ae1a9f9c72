//! The syntax of `hosts.toml`.
//!
//! Unknown keys and capabilities are logged and ignored, so that a file written for a newer containerd works too.
//! A known key with a wrong value is an error: using the wrong host would be worse than failing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use switchyard_core::image::ImageReference;
use toml::{Table, Value};
use url::Url;

use super::{Capabilities, ClientPair, Host, Pem, PlainHttp, Tls, invalid};
use crate::error::shown;
use crate::{Error, Result};

const HOST_KEYS: [&str; 8] = [
    "capabilities",
    "ca",
    "client",
    "skip_verify",
    "header",
    "override_path",
    "dial_timeout",
    "proxy",
];

/// One table of the file: the top level or one `[host."…"]`.
struct Section<'a> {
    file: &'a Path,
    /// Put before the keys in errors: empty, or `host."https://mirror".`.
    prefix: String,
    table: &'a Table,
}

/// Parses the file. The hosts come in its order, the server last.
pub(crate) fn parse(file: &Path, text: &str, reference: &ImageReference) -> Result<Vec<Host>> {
    let root: Table = text
        .parse()
        .map_err(|error: toml::de::Error| Error::InvalidConfig {
            file: file.to_owned(),
            key: None,
            reason: "is no valid TOML".to_owned(),
            source: Some(Box::new(error)),
        })?;
    let mut hosts = Vec::new();
    let mirrors = match root.get("host") {
        None => &Table::new(),
        Some(Value::Table(mirrors)) => mirrors,
        Some(_) => {
            return Err(invalid(
                file,
                Some("host".into()),
                "must be a table: [host.\"https://mirror\"]",
            ));
        }
    };
    for (server, table) in mirrors {
        let prefix = format!("host.{server:?}.");
        let Value::Table(table) = table else {
            return Err(invalid(
                file,
                Some(format!("host.{server:?}")),
                "must be a table",
            ));
        };
        let section = Section {
            file,
            prefix,
            table,
        };
        section.report_unknown(&[]);
        hosts.push(section.host(server, &format!("host.{server:?}"))?);
    }
    let section = Section {
        file,
        prefix: String::new(),
        table: &root,
    };
    section.report_unknown(&["server", "host"]);
    hosts.push(match root.get("server") {
        None => section.registry(reference)?,
        Some(Value::String(server)) if server.is_empty() => section.registry(reference)?,
        Some(Value::String(server)) => section.host(server, "server")?,
        Some(_) => return Err(invalid(file, Some("server".into()), "must be a string")),
    });
    Ok(hosts)
}

impl Section<'_> {
    fn report_unknown(&self, also_known: &[&str]) {
        for key in self.table.keys() {
            if !HOST_KEYS.contains(&key.as_str()) && !also_known.contains(&key.as_str()) {
                tracing::warn!(file = %self.file.display(), key = %self.key(key), "unknown key in hosts.toml is ignored");
            }
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn wrong(&self, key: &str, reason: impl Into<String>) -> Error {
        invalid(self.file, Some(self.key(key)), reason)
    }

    /// The registry of the reference, with this section's settings.
    fn registry(&self, reference: &ImageReference) -> Result<Host> {
        let host = Host::registry(reference)?;
        let tls = self.tls()?;
        // The defaults for loopback stay unless the file says how to verify the server.
        let skip_verify = tls.skip_verify.or(if tls.authorities.is_empty() {
            host.tls.skip_verify
        } else {
            None
        });
        Ok(Host {
            capabilities: self.capabilities()?,
            tls: Tls { skip_verify, ..tls },
            headers: self.headers()?,
            dial_timeout: self.dial_timeout()?,
            proxy: self.proxy()?,
            ..host
        })
    }

    /// The host that `server` names, which is the value or name of `key`.
    fn host(&self, server: &str, key: &str) -> Result<Host> {
        let wrong = |reason: &str| invalid(self.file, Some(key.to_owned()), reason);
        let text = if server.contains("://") {
            server.to_owned()
        } else {
            format!("https://{server}")
        };
        let mut base =
            Url::parse(&text).map_err(|_| wrong("is no URL; write https://host[:port][/path]"))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(wrong("must be a http or https URL"));
        }
        if base.host_str().is_none_or(str::is_empty) {
            return Err(wrong("has no host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("must not hold credentials; give them with the pull"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("must not have a query or a fragment"));
        }
        let mut path = base.path().trim_end_matches('/').to_owned();
        if !self.boolean("override_path")?.unwrap_or(false) && !path.ends_with("/v2") {
            path.push_str("/v2");
        }
        base.set_path(&path);
        let tls = self.tls()?;
        let mut plain_http = PlainHttp::Never;
        let explicit = tls != Tls::default();
        if base.scheme() == "http" && explicit && base.port().is_some() {
            // TLS settings are configured, so TLS is preferred; the scheme `http` allows a server without it.
            base.set_scheme("https")
                .map_err(|()| wrong("cannot be asked with TLS"))?;
            plain_http = PlainHttp::IfServerIsPlain;
        }
        Ok(Host {
            base,
            plain_http,
            capabilities: self.capabilities()?,
            tls,
            headers: self.headers()?,
            dial_timeout: self.dial_timeout()?,
            proxy: self.proxy()?,
            namespace: None,
            is_registry: false,
        })
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::Boolean(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(key, "must be true or false")),
        }
    }

    fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(key, "must be a string")),
        }
    }

    fn capabilities(&self) -> Result<Capabilities> {
        let list = match self.table.get("capabilities") {
            None => return Ok(Capabilities::ALL),
            Some(Value::Array(list)) if list.is_empty() => return Ok(Capabilities::ALL),
            Some(Value::Array(list)) => list,
            Some(_) => {
                return Err(self.wrong("capabilities", "must be a list of pull, resolve and push"));
            }
        };
        let mut capabilities = Capabilities {
            pull: false,
            resolve: false,
            push: false,
        };
        for value in list {
            match value.as_str().map(str::to_ascii_lowercase).as_deref() {
                Some("pull") => capabilities.pull = true,
                Some("resolve") => capabilities.resolve = true,
                Some("push") => capabilities.push = true,
                // A host of which only such ones are listed is not used: the others were not given to it.
                Some(_) => {
                    tracing::warn!(
                        file = %self.file.display(),
                        key = %self.key("capabilities"),
                        what = %shown(&value.to_string()),
                        "unknown capability in hosts.toml is ignored"
                    );
                }
                None => {
                    return Err(self.wrong(
                        "capabilities",
                        format!("has {value}; it is a list of texts such as \"pull\""),
                    ));
                }
            }
        }
        Ok(capabilities)
    }

    fn tls(&self) -> Result<Tls> {
        let files = self.strings("ca", "a path or a list of paths")?;
        let authorities = files
            .into_iter()
            .map(|file| self.pem("ca", file))
            .collect::<Result<Vec<_>>>()?;
        Ok(Tls {
            authorities,
            clients: self.clients()?,
            skip_verify: self.boolean("skip_verify")?,
        })
    }

    /// Paths are relative to the file.
    fn pem(&self, key: &str, file: &str) -> Result<Pem> {
        let path: PathBuf = self.file.parent().unwrap_or(Path::new("")).join(file);
        Pem::read(path, Some((self.file, &self.key(key))))
    }

    fn strings(&self, key: &str, expected: &str) -> Result<Vec<&str>> {
        let wrong = || self.wrong(key, format!("must be {expected}"));
        match self.table.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(value)) => Ok(vec![value]),
            Some(Value::Array(list)) => list
                .iter()
                .map(|value| value.as_str().ok_or_else(wrong))
                .collect::<Result<_>>(),
            Some(_) => Err(wrong()),
        }
    }

    /// A path, a list of paths to files with certificate and key, or a list of pairs of paths. A flat list of
    /// a certificate and its key is not a pair for containerd, but it is in use, and can have no other
    /// meaning.
    fn clients(&self) -> Result<Vec<ClientPair>> {
        let expected = "a path, or a list of pairs [certificate, key]";
        let mut pairs = Vec::new();
        match self.table.get("client") {
            Some(Value::Array(list)) if list.iter().any(Value::is_array) => {
                for value in list {
                    let pair: Option<Vec<&str>> = value
                        .as_array()
                        .and_then(|pair| pair.iter().map(Value::as_str).collect());
                    match pair.as_deref() {
                        Some([certificate, ""]) => pairs.push((*certificate, None)),
                        Some([certificate, key]) => pairs.push((*certificate, Some(*key))),
                        Some(_) => return Err(self.wrong("client", format!("must be {expected}"))),
                        None => match value.as_str() {
                            Some(file) => pairs.push((file, None)),
                            None => return Err(self.wrong("client", format!("must be {expected}"))),
                        },
                    }
                }
            }
            _ => pairs.extend(
                self.strings("client", expected)?
                    .into_iter()
                    .map(|file| (file, None)),
            ),
        }
        let read = |(certificate, key): (&str, Option<&str>)| {
            let key = key.map(|key| self.pem("client", key)).transpose()?;
            Ok::<_, Error>(ClientPair {
                certificate: self.pem("client", certificate)?,
                key,
            })
        };
        if let [(certificate, None), (key, None)] = pairs.as_slice() {
            let pair = read((certificate, Some(key)))?;
            let split = !holds_key(&pair.certificate) && pair.key.as_ref().is_some_and(holds_key);
            if split {
                return Ok(vec![pair]);
            }
        }
        pairs.into_iter().map(read).collect()
    }

    fn headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let table = match self.table.get("header") {
            None => return Ok(headers),
            Some(Value::Table(table)) => table,
            Some(_) => {
                return Err(self.wrong("header", "must be a table of header names and values"));
            }
        };
        let section = Section {
            file: self.file,
            prefix: self.key("header."),
            table,
        };
        for name in table.keys() {
            let header: HeaderName = name
                .parse()
                .map_err(|_| section.wrong(name, "is no valid name of a header"))?;
            for value in section.strings(name, "a string or a list of strings")? {
                let mut value: HeaderValue = value
                    .parse()
                    .map_err(|_| section.wrong(name, "holds characters that no header may hold"))?;
                // Tokens are often sent this way.
                value.set_sensitive(true);
                headers.append(header.clone(), value);
            }
        }
        Ok(headers)
    }

    fn dial_timeout(&self) -> Result<Option<Duration>> {
        match self.string("dial_timeout")? {
            None | Some("") => Ok(None),
            Some(text) => parse_duration(text)
                .filter(|value| !value.is_zero())
                .ok_or_else(|| {
                    self.wrong(
                        "dial_timeout",
                        "must be a duration above zero such as \"500ms\", \"3s\" or \"1m30s\"",
                    )
                })
                .map(Some),
        }
    }

    fn proxy(&self) -> Result<Option<Url>> {
        let Some(text) = self.string("proxy")?.filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let wrong = || {
            self.wrong(
                "proxy",
                "must be a URL such as \"http://proxy:8080\" (http, https, socks5, socks5h)",
            )
        };
        let url = Url::parse(text).map_err(|_| wrong())?;
        let known = matches!(url.scheme(), "http" | "https" | "socks5" | "socks5h");
        let bare =
            matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        if known && bare && url.host_str().is_some_and(|host| !host.is_empty()) {
            Ok(Some(url))
        } else {
            Err(wrong())
        }
    }
}

fn holds_key(pem: &Pem) -> bool {
    let needle: &[u8] = b"PRIVATE KEY-----";
    pem.content
        .windows(needle.len())
        .any(|window| window == needle)
}

/// Go's notation: decimal numbers with a unit each, one after another.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let mut seconds = 0.0;
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|&digits| digits > 0)?;
        let (number, tail) = rest.split_at(digits);
        let unit_len = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_len);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * scale;
        rest = next;
    }
    Duration::try_from_secs_f64(seconds).ok()
}
