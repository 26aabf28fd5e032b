//! Power as Linux exposes it in `/sys/class/power_supply`.

use std::fs;
use std::path::Path;

use super::Unmet;

/// Returns `true` if the machine is on mains power or has no battery.
pub(super) fn is_on_mains(root: &Path) -> Result<bool, Unmet> {
    let folder = root.join("sys/class/power_supply");
    let supplies = fs::read_dir(&folder).map_err(|_| Unmet::Unknown { what: "power", path: folder })?;
    let mut batteries = Vec::new();
    for supply in supplies.flatten() {
        let read = |file: &str| {
            fs::read_to_string(supply.path().join(file))
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        match read("type").as_str() {
            // Ignore the battery of a peripheral such as a mouse or a headset.
            "Battery" if read("scope") != "Device" => batteries.push(read("status")),
            "Mains" | "USB" | "Wireless" if read("online") == "1" => return Ok(true),
            _ => {}
        }
    }
    // "Not charging" means a sufficiently full battery on mains power.
    Ok(batteries.iter().all(|status| matches!(status.as_str(), "Charging" | "Full" | "Not charging")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a system with these supplies, each a list of files.
    fn on_mains(supplies: &[&[(&str, &str)]]) -> bool {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/class/power_supply");
        fs::create_dir_all(&folder).unwrap();
        for (i, files) in supplies.iter().enumerate() {
            let supply = folder.join(format!("supply{i}"));
            fs::create_dir(&supply).unwrap();
            files.iter().for_each(|(name, text)| fs::write(supply.join(name), format!("{text}\n")).unwrap());
        }
        is_on_mains(root.path()).unwrap()
    }

    const EMPTYING: &[(&str, &str)] = &[("type", "Battery"), ("status", "Discharging")];

    #[test]
    fn a_laptop_is_on_mains_while_its_adapter_is_plugged_in() {
        assert!(!on_mains(&[EMPTYING, &[("type", "Mains"), ("online", "0")]]));
        assert!(on_mains(&[EMPTYING, &[("type", "Mains"), ("online", "1")]]), "a weak adapter");
        assert!(on_mains(&[&[("type", "Battery"), ("status", "Charging")]]));
        assert!(on_mains(&[&[("type", "Battery"), ("status", "Not charging")]]));
        assert!(!on_mains(&[&[("type", "Battery"), ("status", "Unknown")]]));
    }

    #[test]
    fn a_machine_without_a_battery_is_on_mains_whatever_its_mouse_has() {
        assert!(on_mains(&[]));
        assert!(on_mains(&[&[("type", "Battery"), ("scope", "Device"), ("status", "Discharging")]]));
    }

    #[test]
    fn a_system_that_shows_no_power_is_not_taken_for_one_on_mains() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(is_on_mains(root.path()), Err(Unmet::Unknown { what: "power", .. })));
    }
}
