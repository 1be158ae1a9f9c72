//! Debian's Chromium without a window, driven over the Chrome DevTools Protocol, with scripts off.
//!
//! Each page counts what it requests and what the browser complains about, and can be looked at as people and screen
//! readers do: its text, its width, its accessibility tree, the contrast of its text, and a picture.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::host::eventually;
use crate::prereq;
use crate::scratch::Scratch;

mod connection;
mod contrast;

use connection::Connection;
pub use contrast::TextContrast;

/// Limit for Chromium to start, beside other tests.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running browser. Dropping it ends all of its processes.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    connection: Connection,
    // Must be the last field: dropping it removes the files that the browser uses.
    _profile: Scratch,
}

/// The conditions under which a page is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Viewport {
    /// In CSS pixels.
    pub width: u32,
    /// True if the user prefers dark pages.
    pub is_dark: bool,
}

/// A page of a browser.
#[derive(Debug)]
pub struct BrowserPage<'a> {
    connection: &'a mut Connection,
    session: String,
}

/// A node of the accessibility tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessibleNode {
    /// Its role, such as `link` or `heading`.
    pub role: String,
    /// Its name, as a screen reader speaks it; empty if it has none.
    pub name: String,
}

// === impl Browser ===

impl Browser {
    /// Starts Chromium.
    ///
    /// # Panics
    /// When it does not start; a missing one names its Debian package.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        let program = prereq::require("chromium", "chromium");
        let profile = Scratch::new();
        let data = profile.path().join("chromium");
        let log = profile.path().join("chromium.log");
        let output = File::create(&log).expect("the directory is ours");
        let child = Command::new(program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-sync",
                "--disable-extensions",
                "--hide-scrollbars",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--password-store=basic",
            ])
            .arg("--remote-debugging-port=0")
            .arg(format!("--user-data-dir={}", data.display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            // Its other processes are ended with it.
            .process_group(0)
            .spawn()
            .expect("chromium can be started");
        let ended = Ended(Some(child));
        let place = data.join("DevToolsActivePort");
        // Two lines: the port, and the path of the browser's endpoint.
        let endpoint = || {
            let text = fs::read_to_string(&place).ok()?;
            let (port, path) = text.trim().split_once('\n')?;
            Some((port.parse().ok()?, path.to_owned()))
        };
        assert!(
            eventually(START_LIMIT, || endpoint().is_some()),
            "chromium does not start: {}",
            fs::read_to_string(&log).unwrap_or_default()
        );
        let (port, path): (u16, String) = endpoint().expect("it was there");
        Self {
            connection: Connection::open(port, &path),
            child: ended.keep(),
            _profile: profile,
        }
    }

    /// Opens an empty page, in which scripts are off. Its cookies are those of the browser's other pages.
    ///
    /// # Panics
    /// When the browser refuses, as all methods of pages.
    #[track_caller]
    pub fn page(&mut self, viewport: Viewport) -> BrowserPage<'_> {
        let target =
            self.connection
                .call("", "Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.connection.call("", "Target.attachToTarget", &attach);
        let session = attached["sessionId"]
            .as_str()
            .expect("a session has an id")
            .to_owned();
        let mut page = BrowserPage {
            connection: &mut self.connection,
            session,
        };
        for domain in [
            "Page",
            "Network",
            "Log",
            "DOM",
            "DOMSnapshot",
            "Accessibility",
        ] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        page.call(
            "Emulation.setScriptExecutionDisabled",
            &json!({ "value": true }),
        );
        page.look(viewport);
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A process that is ended if the browser does not come up.
struct Ended(Option<Child>);

impl Ended {
    fn keep(mut self) -> Child {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    let group =
        Pid::from_raw(i32::try_from(child.id()).expect("Linux keeps process ids below 2^22"));
    // They may have ended already, which is as intended.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

// === impl BrowserPage ===

impl BrowserPage<'_> {
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.connection.call(&self.session, method, params)
    }

    /// Looks at the page in another way.
    #[track_caller]
    pub fn look(&mut self, Viewport { width, is_dark }: Viewport) {
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
        let value = if is_dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", &media);
    }

    /// Opens a URL, and waits until it is loaded with its style sheets. Returns the text of the page.
    #[track_caller]
    pub fn open(&mut self, url: &str) -> String {
        self.connection
            .forget_event(&self.session, "Page.loadEventFired");
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.connection
            .wait_for_event(&self.session, "Page.loadEventFired");
        self.text()
    }

    /// The text of the page, as it is laid out: what is not displayed is not in it.
    #[track_caller]
    pub fn text(&mut self) -> String {
        let snapshot = self.snapshot();
        contrast::texts(&snapshot).join("\n")
    }

    /// The URLs that the page has requested since it was made.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let events = self
            .connection
            .events(&self.session, "Network.requestWillBeSent");
        events
            .filter_map(|event| event["request"]["url"].as_str().map(str::to_owned))
            .collect()
    }

    /// Returns the browser's complaints since the page was made, such as violations of its policy.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let events = self.connection.events(&self.session, "Log.entryAdded");
        events
            .filter_map(|event| event["entry"]["text"].as_str().map(str::to_owned))
            .collect()
    }

    /// The width of the page's content, and that of what is seen of it, in CSS pixels.
    #[track_caller]
    pub fn widths(&mut self) -> (f64, f64) {
        let metrics = self.call("Page.getLayoutMetrics", &json!({}));
        let width = |value: &Value| value.as_f64().expect("a width is a number");
        (
            width(&metrics["cssContentSize"]["width"]),
            width(&metrics["cssLayoutViewport"]["clientWidth"]),
        )
    }

    /// Returns the nodes that a screen reader finds.
    #[track_caller]
    pub fn accessible(&mut self) -> Vec<AccessibleNode> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a tree has nodes").iter();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes
            .filter(|node| node["ignored"] != json!(true))
            .map(|node| AccessibleNode {
                role: text(&node["role"]),
                name: text(&node["name"]),
            })
            .collect()
    }

    /// Returns the contrast of every text to its background.
    #[track_caller]
    pub fn contrasts(&mut self) -> Vec<TextContrast> {
        let snapshot = self.snapshot();
        contrast::of_snapshot(&snapshot)
    }

    /// The names of the elements that the page has, in lower case.
    #[track_caller]
    pub fn tags(&mut self) -> BTreeSet<String> {
        let snapshot = self.snapshot();
        let strings = snapshot["strings"]
            .as_array()
            .expect("a snapshot has strings");
        let names = snapshot["documents"][0]["nodes"]["nodeName"]
            .as_array()
            .expect("nodes have names");
        let name = |index: &Value| strings[usize::try_from(index.as_u64()?).ok()?].as_str();
        names
            .iter()
            .filter_map(name)
            .map(str::to_lowercase)
            .collect()
    }

    /// Writes a picture of the whole page as PNG.
    #[track_caller]
    pub fn screenshot(&mut self, file: &Path) {
        let metrics = self.call("Page.getLayoutMetrics", &json!({}));
        let size = &metrics["cssContentSize"];
        let clip =
            json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let ask = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.call("Page.captureScreenshot", &ask);
        let data = STANDARD.decode(shot["data"].as_str().expect("a picture has data"));
        fs::write(file, data.expect("the browser encodes in base64"))
            .expect("the picture can be written");
    }

    fn snapshot(&mut self) -> Value {
        self.call(
            "DOMSnapshot.captureSnapshot",
            &json!({ "computedStyles": contrast::STYLES }),
        )
    }
}
