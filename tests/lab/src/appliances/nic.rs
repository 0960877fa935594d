//! The RDMA devices of appliances.

use connectx3::device::{LinkType, Profile};
use connectx3::options::Property;
use std::fmt;
use std::str::FromStr;
use verbs::MacAddr;

/// The RDMA device of an appliance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RdmaNic {
    /// RoCE v2 and v1 in software over virtio-net.
    SoftRoce,
    /// An emulated ConnectX-3 of a profile, for which QEMU must have vfio-user devices.
    Card(&'static str),
    /// An emulated card that has both layers, on InfiniBand, which it does not suggest itself.
    VpiInfiniBand,
}

/// The profile of a card that has both layers.
const VPI: &str = "vpi";

impl RdmaNic {
    /// The usual card.
    pub const USUAL: Self = Self::Card(Profile::NAMES[0]);
    /// A virtual function of the usual card.
    pub const VIRTUAL: Self = Self::Card("vf");
    /// An InfiniBand card.
    pub const INFINIBAND: Self = Self::Card("ib");

    /// Returns the profile of the device's card.
    pub const fn profile(&self) -> Option<&'static str> {
        match self {
            Self::SoftRoce => None,
            Self::Card(profile) => Some(profile),
            Self::VpiInfiniBand => Some(VPI),
        }
    }

    /// Returns true if the device has an InfiniBand port.
    pub(crate) fn is_infiniband(&self) -> bool {
        if *self == Self::VpiInfiniBand {
            return true;
        }
        let profile = self.profile().and_then(|name| Profile::named(name, MacAddr([0; 6])));
        let link = profile.and_then(|profile| Some(profile.ports.first()?.links.suggested()));
        link == Some(LinkType::InfiniBand)
    }

    /// Returns the driver's name on the kernel's command line.
    pub const fn driver(&self) -> &'static str {
        match self {
            Self::SoftRoce => "softroce",
            Self::Card(_) => "mlx4",
            Self::VpiInfiniBand => "mlx4/1:ib",
        }
    }
}

impl fmt::Display for RdmaNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SoftRoce => f.write_str("softroce"),
            card if *card == Self::USUAL => f.write_str("cx3"),
            card if *card == Self::VIRTUAL => f.write_str("cx3-vf"),
            Self::Card(profile) => write!(f, "cx3:{profile}"),
            Self::VpiInfiniBand => write!(f, "cx3:{VPI}:ib"),
        }
    }
}

impl FromStr for RdmaNic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "softroce" => return Ok(Self::SoftRoce),
            "cx3" => return Ok(Self::USUAL),
            "cx3-vf" => return Ok(Self::VIRTUAL),
            "cx3:vpi:ib" => return Ok(Self::VpiInfiniBand),
            _ => {}
        }
        let profile = text.strip_prefix("cx3:").and_then(|name| Profile::NAMES.iter().find(|p| **p == name));
        profile.map(|profile| Self::Card(profile)).ok_or_else(|| {
            let profiles = Profile::NAMES.join(", ");
            format!("want softroce, cx3, cx3-vf, cx3:vpi:ib or cx3:PROFILE, of {profiles}")
        })
    }
}

/// An option of an appliance's card for `cx3`, in addition to the profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardKey {
    /// The number of the appliance.
    pub node: u16,
    /// The option.
    pub property: Property,
    /// The option as it was given, as `key=value`.
    pub key: String,
}

impl FromStr for CardKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, key) = text.split_once(':').ok_or("want N:KEY=VALUE, as in 1:fails=500")?;
        let node =
            node.parse().map_err(|_| format!("\"{node}\" is not the number of an appliance, from 0"))?;
        let property = key.parse().map_err(|error| format!("{error:#}"))?;
        Ok(Self { node, property, key: key.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use connectx3::device::Breakdown;

    #[test]
    fn nics_have_one_name_each() {
        for (text, driver) in
            [("softroce", "softroce"), ("cx3", "mlx4"), ("cx3-vf", "mlx4"), ("cx3:blueflame", "mlx4")]
        {
            let nic: RdmaNic = text.parse().unwrap();
            assert_eq!((nic.to_string().as_str(), nic.driver()), (text, driver));
            assert!(!nic.is_infiniband());
        }
        assert_eq!("cx3:pro".parse::<RdmaNic>(), "cx3".parse());
        for text in ["cx3:ib", "cx3:vpi:ib"] {
            assert!(text.parse::<RdmaNic>().is_ok_and(|nic| nic.is_infiniband() && nic.to_string() == text));
        }
        assert!("cx3:vpi".parse::<RdmaNic>().is_ok_and(|nic| !nic.is_infiniband()));
        for wrong in ["", "cx4", "cx3:", "cx3:none", "cx3-"] {
            assert!(wrong.parse::<RdmaNic>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_of_cards_are_those_that_cx3_takes() {
        let key = "2:fails=500".parse::<CardKey>();
        let property = Property::Fails { how: Breakdown::Once, frames: 500 };
        assert_eq!(key, Ok(CardKey { node: 2, property, key: "fails=500".into() }));
        for (wrong, says) in [
            ("", "want N:KEY=VALUE, as in 1:fails=500"),
            ("fails=500", "want N:KEY=VALUE, as in 1:fails=500"),
            ("x:fails=500", "\"x\" is not the number of an appliance, from 0"),
            ("0:fails=abc", "fails: \"abc\" is not a number of sent frames, which is 1 or more"),
            ("1:fails=5,dies=5", "fails: \"5,dies=5\" is not a number of sent frames, which is 1 or more"),
            (
                "1:fails",
                "\"fails\" is not KEY=VALUE with a key of profile, mac, fabric, fabric2, link_s, fails, dies",
            ),
            (
                "1:colour=red",
                "there is no key \"colour\"; the keys are profile, mac, fabric, fabric2, link_s, fails, dies",
            ),
        ] {
            assert_eq!(wrong.parse::<CardKey>(), Err(says.to_owned()), "{wrong}");
        }
    }
}
