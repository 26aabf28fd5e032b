//! The network as Linux exposes it: the interface of the default route and its kind.
//!
//! The kernel reports modems but not tariffs. Wi-Fi shared by a telephone looks like any other
//! Wi-Fi.

use std::fs;
use std::path::Path;

use super::Unmet;

/// `ARPHRD_PPP` and `ARPHRD_RAWIP` of Linux, the types of modems without a `DEVTYPE`.
const MODEM_TYPES: [&str; 2] = ["512", "519"];

/// Returns the interface of the default route if it belongs to a mobile modem or to Bluetooth.
pub(super) fn metered(root: &Path) -> Result<Option<String>, Unmet> {
    let folder = root.join("proc/net");
    let (v4, v6) = (fs::read_to_string(folder.join("route")), fs::read_to_string(folder.join("ipv6_route")));
    if v4.is_err() && v6.is_err() {
        return Err(Unmet::Unknown { what: "network", path: folder });
    }
    let v4 = default_interface(v4.unwrap_or_default().lines().filter_map(route_v4));
    let interface = v4.or_else(|| default_interface(v6.unwrap_or_default().lines().filter_map(route_v6)));
    Ok(interface.filter(|interface| is_modem(&root.join("sys/class/net").join(interface))))
}

/// Returns the interface of the default route with the lowest metric.
fn default_interface(routes: impl Iterator<Item = (u32, String)>) -> Option<String> {
    routes.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

/// Parses a line of `route`. Returns the metric and the interface of a default route.
fn route_v4(line: &str) -> Option<(u32, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [interface, destination, _, _, _, _, metric, mask, ..] = fields[..] else { return None };
    let default = destination == "00000000" && mask == "00000000";
    default.then(|| Some((metric.parse().ok()?, interface.to_owned())))?
}

/// Parses a line of `ipv6_route`. Returns the metric and the interface of a default route. The
/// unreachable default route of the loopback device is ignored.
fn route_v6(line: &str) -> Option<(u32, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [destination, length, _, _, _, metric, _, _, _, interface] = fields[..] else { return None };
    let default = destination.bytes().all(|byte| byte == b'0') && length == "00" && interface != "lo";
    default.then(|| Some((u32::from_str_radix(metric, 16).ok()?, interface.to_owned())))?
}

fn is_modem(interface: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(interface.join(file)).unwrap_or_default();
    let kind = |line: &str| matches!(line.trim(), "DEVTYPE=wwan" | "DEVTYPE=bluetooth");
    read("uevent").lines().any(kind) || MODEM_TYPES.contains(&read("type").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    fn found(files: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        metered(root.path()).unwrap()
    }

    #[test]
    fn the_interface_of_the_default_route_with_the_lowest_metric_counts() {
        let route = |wlan: u32, wwan: u32| {
            format!(
                "{HEAD}wlan0\t00000000\t0100A8C0\t0003\t0\t0\t{wlan}\t00000000\t0\t0\t0\n\
                 wwan0\t00000000\t0100000A\t0003\t0\t0\t{wwan}\t00000000\t0\t0\t0\n\
                 wwan0\t0000000A\t00000000\t0001\t0\t0\t1\t000000FF\t0\t0\t0\n"
            )
        };
        let kinds = [
            ("sys/class/net/wlan0/uevent", "DEVTYPE=wlan\nINTERFACE=wlan0\n"),
            ("sys/class/net/wwan0/uevent", "DEVTYPE=wwan\nINTERFACE=wwan0\n"),
        ];
        let with = |route: &str| found(&[("proc/net/route", route), kinds[0], kinds[1]]);
        assert_eq!(with(&route(600, 700)), None);
        assert_eq!(with(&route(800, 700)), Some("wwan0".to_owned()));
        assert_eq!(with(HEAD), None, "no way out at all");
    }

    #[test]
    fn a_modem_behind_ppp_or_with_ipv6_alone_is_found() {
        let ppp = format!("{HEAD}ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n");
        let type_of = ("sys/class/net/ppp0/type", "512\n");
        assert_eq!(found(&[("proc/net/route", &ppp), type_of]), Some("ppp0".to_owned()));
        let zeros = "0".repeat(32);
        let v6 = format!(
            "{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo\n\
             {zeros} 00 {zeros} 00 fe80 00000400 00000001 00000000 00000003    wwan0\n"
        );
        let kind = ("sys/class/net/wwan0/uevent", "DEVTYPE=wwan\n");
        assert_eq!(
            found(&[("proc/net/route", HEAD), ("proc/net/ipv6_route", &v6), kind]),
            Some("wwan0".to_owned())
        );
    }

    #[test]
    fn a_system_that_shows_no_routes_is_not_taken_for_unmetered() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(metered(root.path()), Err(Unmet::Unknown { what: "network", .. })));
    }
}
