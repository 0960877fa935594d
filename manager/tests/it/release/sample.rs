//! Bytes of a type, made of its shape by the rules of postcard: an independent writer of the encoding.

use serde_reflection::{ContainerFormat, Format, Registry, VariantFormat};
use std::collections::BTreeSet;

/// Returns samples of a type: for each variant as many as its own enumerations have variants. A structure has
/// one variant, whose name is `-`.
pub(super) fn samples(registry: &Registry, name: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |variant: &str, index: Option<u32>, format: &VariantFormat| {
        let mut reach = Reach { registry, seen: BTreeSet::new(), turns: 1 };
        reach.variant(format);
        for turn in 0..reach.turns {
            let start = turn as u64 * 20;
            let mut writer = Writer { registry, turn, next: start, bytes: Vec::new() };
            if let Some(index) = index {
                writer.varint(index.into());
            }
            writer.variant(format);
            all.push((variant.to_owned(), writer.bytes));
        }
    };
    match &registry[name] {
        ContainerFormat::Enum(variants) => {
            for (&index, variant) in variants {
                add(&variant.name, Some(index), &variant.value);
            }
        }
        container => add("-", None, &as_variant(container)),
    }
    all
}

fn as_variant(container: &ContainerFormat) -> VariantFormat {
    match container.clone() {
        ContainerFormat::UnitStruct => VariantFormat::Unit,
        ContainerFormat::NewTypeStruct(format) => VariantFormat::NewType(format),
        ContainerFormat::TupleStruct(formats) => VariantFormat::Tuple(formats),
        ContainerFormat::Struct(fields) => VariantFormat::Struct(fields),
        ContainerFormat::Enum(_) => panic!("an enumeration has many variants"),
    }
}

/// Finds the greatest number of variants of the enumerations within a variant.
struct Reach<'a> {
    registry: &'a Registry,
    seen: BTreeSet<&'a str>,
    turns: usize,
}

impl<'a> Reach<'a> {
    fn variant(&mut self, format: &VariantFormat) {
        use serde_reflection::FormatHolder;
        let mut names = Vec::new();
        let mut visit = |format: &Format| {
            if let Format::TypeName(name) = format {
                names.push(name.clone());
            }
            Ok(())
        };
        format.visit(&mut visit).unwrap();
        for name in names {
            let (name, container) = self.registry.get_key_value(&name).unwrap();
            if !self.seen.insert(name) {
                continue;
            }
            if let ContainerFormat::Enum(variants) = container {
                self.turns = self.turns.max(variants.len());
                variants.values().for_each(|variant| self.variant(&variant.value));
            } else {
                self.variant(&as_variant(container));
            }
        }
    }
}

struct Writer<'a> {
    registry: &'a Registry,
    /// The number of the sample, by which enumerations choose their variants.
    turn: usize,
    /// The number of values so far, so that no two are the same.
    next: u64,
    bytes: Vec<u8>,
}

impl Writer<'_> {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn text(&mut self, text: &[u8]) {
        self.varint(text.len() as u64);
        self.bytes.extend(text);
    }

    fn all<'f>(&mut self, formats: impl IntoIterator<Item = &'f Format>) {
        formats.into_iter().for_each(|format| self.format(format));
    }

    fn variant(&mut self, format: &VariantFormat) {
        match format {
            VariantFormat::Unit => {}
            VariantFormat::NewType(format) => self.format(format),
            VariantFormat::Tuple(formats) => self.all(formats),
            VariantFormat::Struct(fields) => self.all(fields.iter().map(|field| &field.value)),
            VariantFormat::Variable(_) => panic!("a form that is not known"),
        }
    }

    fn format(&mut self, format: &Format) {
        match format {
            Format::Unit => {}
            Format::Bool => self.bytes.push(1),
            Format::U8 | Format::I8 => {
                let number = self.number();
                self.bytes.push(number as u8);
            }
            // More than fit one byte of the encoding.
            Format::U16 => {
                let number = 300 + self.number();
                self.varint(number);
            }
            Format::U32 => {
                let number = 70_000 + self.number();
                self.varint(number);
            }
            Format::U64 => {
                let number = 5_000_000_000 + self.number();
                self.varint(number);
            }
            // A negative number.
            Format::I16 | Format::I32 | Format::I64 => {
                let number = 300 + self.number();
                self.varint(2 * number - 1);
            }
            Format::Str => {
                let text = format!("text-{}", self.number());
                self.text(text.as_bytes());
            }
            Format::Bytes => {
                let number = self.number();
                self.text(&[number as u8, 200]);
            }
            Format::Option(inner) | Format::Seq(inner) => {
                self.bytes.push(1);
                self.format(inner);
            }
            Format::Tuple(formats) => self.all(formats),
            Format::TupleArray { content, size } => (0..*size).for_each(|_| self.format(content)),
            Format::Map { key, value } => {
                self.bytes.push(1);
                self.format(key);
                self.format(value);
            }
            Format::TypeName(name) => match &self.registry[name] {
                ContainerFormat::Enum(variants) => {
                    let (&index, variant) = variants.iter().nth(self.turn % variants.len()).unwrap();
                    self.varint(index.into());
                    self.variant(&variant.value);
                }
                container => self.variant(&as_variant(container)),
            },
            other => panic!("no message has {other:?}"),
        }
    }
}
