//! *Devices*: the GPUs and RDMA NICs of the machine, with their NUMA nodes and their IOMMU mode.

use super::files::MachineFiles;
use super::files::{Read, Unread};
use super::parse;

/// A device that reads and writes memory by DMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DmaDevice {
    /// `GPU` or `NIC`.
    pub(crate) kind: &'static str,
    /// The NIC's name, `mlx5_0`, or the GPU's address on the bus, `0000:3b:00.0`.
    pub(crate) name: String,
    /// The node next to it. `Ok(None)`: the firmware does not say.
    pub(crate) node: Read<Option<u32>>,
    /// The type of its IOMMU group: `identity`, `DMA`, `DMA-FQ`. `Ok(None)`: no IOMMU is active.
    pub(crate) iommu: Read<Option<String>>,
}

/// The folder of RDMA NICs.
const NICS: &str = "/sys/class/infiniband";
/// The folder of all devices on PCI buses.
const PCI: &str = "/sys/bus/pci/devices";

/// Vendors of GPUs for servers: NVIDIA, AMD and Intel.
const GPU_VENDORS: [&str; 3] = ["0x10de", "0x1002", "0x8086"];
/// The beginnings of PCI classes of GPUs without a screen: 3D controllers, other display
/// controllers, accelerators. A class for screens (`0x0300`) counts for NVIDIA alone.
const GPU_CLASSES: [&str; 3] = ["0x0302", "0x0380", "0x1200"];

/// Returns the GPUs and RDMA NICs.
pub(crate) fn dma_devices(files: &MachineFiles) -> Read<Vec<DmaDevice>> {
    let mut devices = Vec::new();
    let listed = match files.names(PCI) {
        // A machine without PCI has the folder of buses; without it nothing is known.
        Err(unread) if unread.absent => files.names("/sys/bus").map(|_| Vec::new()),
        listed => listed,
    };
    for name in listed? {
        let path = format!("{PCI}/{name}");
        if is_gpu(files, &path) {
            devices.push(device(files, "GPU", name, &path));
        }
    }
    let nics = match files.names(NICS) {
        Err(unread) if unread.absent => Vec::new(),
        nics => nics?,
    };
    for name in nics {
        let path = format!("{NICS}/{name}/device");
        devices.push(device(files, "NIC", name, &path));
    }
    Ok(devices)
}

fn is_gpu(files: &MachineFiles, path: &str) -> bool {
    let word = |file: &str| files.text(&format!("{path}/{file}")).unwrap_or_default();
    let (vendor, class) = (word("vendor"), word("class"));
    let (vendor, class) = (vendor.trim(), class.trim());
    let screen = vendor == GPU_VENDORS[0] && class.starts_with("0x0300");
    let headless = GPU_CLASSES.iter().any(|known| class.starts_with(known));
    GPU_VENDORS.contains(&vendor) && (headless || screen)
}

fn device(files: &MachineFiles, kind: &'static str, name: String, path: &str) -> DmaDevice {
    // The kernel writes -1 for a device of no node.
    let node = |text: &str| match text.trim() {
        "-1" => Some(None),
        node => node.parse().ok().map(Some),
    };
    DmaDevice {
        kind,
        name,
        node: files.value(&format!("{path}/numa_node"), node),
        iommu: iommu(files, path),
    }
}

fn iommu(files: &MachineFiles, path: &str) -> Read<Option<String>> {
    let group = format!("{path}/iommu_group");
    let word = |text: &str| {
        let word = text.trim();
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        (plain && !word.is_empty()).then(|| word.to_owned())
    };
    match files.is_folder(&group)? {
        true => files.value(&format!("{group}/type"), word).map(Some),
        // A device outside of a group is translated by no IOMMU.
        false => Ok(None),
    }
}

/// Returns the distance between two nodes as the firmware reports it: 10 is the same node.
pub(crate) fn distance(files: &MachineFiles, from: u32, to: u32) -> Read<u64> {
    let path = format!("/sys/devices/system/node/node{from}/distance");
    // The columns are the online nodes, in ascending order.
    let online = files.value("/sys/devices/system/node/online", parse::list)?;
    let column = online.iter().position(|node| *node == to);
    let column = column.ok_or_else(|| Unread::new(format!("node {to} is not online")))?;
    files.value(&path, |text| parse::number(text.split_whitespace().nth(column)?))
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::super::MadeUpTree;
    use super::*;

    #[test]
    fn screens_and_disks_are_no_gpus() {
        let tree = MadeUpTree::new("devices", &[]);
        for (name, vendor, class) in [
            ("0000:00:02.0", "0x8086", "0x030000"),
            ("0000:01:00.0", "0x144d", "0x010802"),
            ("0000:3b:00.0", "0x10de", "0x030200"),
            ("0000:5e:00.0", "0x10de", "0x030000"),
            ("0000:86:00.0", "0x1002", "0x120000"),
            ("0000:87:00.0", "0x10de", "0x068000"),
        ] {
            let folder = format!("sys/bus/pci/devices/{name}");
            tree.write(&format!("{folder}/vendor"), &format!("{vendor}\n"));
            tree.write(&format!("{folder}/class"), &format!("{class}\n"));
            tree.write(&format!("{folder}/numa_node"), "1\n");
        }
        let found = dma_devices(&MachineFiles::under(tree.root())).unwrap();
        let names: Vec<_> = found.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"]);
        assert!(found.iter().all(|device| device.node == Ok(Some(1)) && device.iommu == Ok(None)));
    }

    #[test]
    fn columns_of_distances_are_the_online_nodes() {
        let tree = MadeUpTree::new(
            "devices",
            &[
                ("sys/devices/system/node/online", "0,2\n"),
                ("sys/devices/system/node/node0/distance", "10 32\n"),
                ("sys/devices/system/node/node2/distance", "32 10\n"),
            ],
        );
        let files = MachineFiles::under(tree.root());
        assert_eq!(distance(&files, 0, 2), Ok(32));
        assert_eq!(distance(&files, 2, 2), Ok(10));
        assert!(distance(&files, 0, 1).is_err());
    }
}
