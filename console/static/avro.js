// Decodes Avro data: a container file without compression, or a bare datum with its schema.

const MAGIC = [0x4f, 0x62, 0x6a, 0x01]; // "Obj" 1
const SYNC_BYTES = 16;
const ITEMS_MAX = 100_000; // a damaged count must not fill the memory

/** The value of a bare datum, or the list of values of a container file. Throws Error. */
export function decode(data, schemaText) {
  const reader = new Reader(data);
  if (MAGIC.every((each, index) => data[index] === each)) return decodeFile(reader);
  if (!schemaText.trim()) throw new Error("a bare Avro datum needs its schema; write the schema below the form");
  const schema = JSON.parse(schemaText);
  const value = read(reader, schema, named(schema));
  if (reader.at !== data.length) throw new Error(`${data.length - reader.at} bytes are left behind the datum; is this its schema?`);
  return value;
}

function decodeFile(reader) {
  reader.take(MAGIC.length);
  const meta = read(reader, { type: "map", values: "bytes" }, new Map());
  const text = (name) => (meta[name] === undefined ? null : new TextDecoder().decode(meta[name]));
  const codec = text("avro.codec") ?? "null";
  if (codec !== "null") throw new Error(`the file is compressed with ${codec}, which the console can't read`);
  const schema = JSON.parse(text("avro.schema"));
  const names = named(schema);
  const values = [];
  reader.take(SYNC_BYTES);
  while (reader.at < reader.data.length) {
    const count = reader.count();
    reader.long(); // the size of the block
    for (let index = 0; index < count; index += 1) values.push(read(reader, schema, names));
    reader.take(SYNC_BYTES);
  }
  return values;
}

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  take(count) {
    if (count < 0 || this.at + count > this.data.length) throw new Error("the datum is cut off");
    this.at += count;
    return this.data.subarray(this.at - count, this.at);
  }

  long() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const [byte] = this.take(1);
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));
    }
    throw new Error("a number is too long");
  }

  number() {
    const value = this.long();
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }

  count() {
    const value = Number(this.long());
    if (value < 0 || value > ITEMS_MAX) throw new Error("a count is not possible");
    return value;
  }

  float(size) {
    const view = new DataView(Uint8Array.from(this.take(size)).buffer);
    return size === 4 ? view.getFloat32(0, true) : view.getFloat64(0, true);
  }
}

function named(schema, names = new Map(), space = "") {
  if (Array.isArray(schema)) schema.forEach((each) => named(each, names, space));
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) return names;
  const within = schema.namespace ?? space;
  if (schema.name !== undefined) {
    names.set(schema.name, schema);
    if (within) names.set(`${within}.${schema.name}`, schema);
  }
  for (const each of schema.fields ?? []) named(each.type, names, within);
  for (const each of [schema.items, schema.values, schema.type]) if (each !== undefined) named(each, names, within);
  return names;
}

function read(reader, schema, names) {
  if (Array.isArray(schema)) {
    const branch = schema[reader.count()];
    if (branch === undefined) throw new Error("a union has no such branch");
    return read(reader, branch, names);
  }
  const type = typeof schema === "string" ? schema : schema.type;
  if (typeof type === "object") return read(reader, type, names);
  switch (type) {
    case "null": return null;
    case "boolean": return reader.take(1)[0] === 1;
    case "int": case "long": return reader.number();
    case "float": return reader.float(4);
    case "double": return reader.float(8);
    case "bytes": return reader.take(Number(reader.long()));
    case "string": return new TextDecoder("utf-8", { fatal: true }).decode(reader.take(Number(reader.long())));
    case "fixed": return reader.take(schema.size);
    case "enum": return schema.symbols[reader.count()];
    case "array": return blocks(reader, [], (into) => { into.push(read(reader, schema.items, names)); });
    case "map": return blocks(reader, Object.create(null), (into) => { into[read(reader, "string", names)] = read(reader, schema.values, names); });
    case "record": case "error": {
      const record = Object.create(null);
      for (const field of schema.fields) record[field.name] = read(reader, field.type, names);
      return record;
    }
    default: {
      const found = names.get(type);
      if (found === undefined || found === schema) throw new Error(`the schema has no type ${type}`);
      return read(reader, found, names);
    }
  }
}

function blocks(reader, into, readItem) {
  for (;;) {
    let count = Number(reader.long());
    if (count < 0) {
      count = -count;
      reader.long(); // the size of the block
    }
    if (count === 0) return into;
    if (count > ITEMS_MAX) throw new Error("a count is not possible");
    for (let index = 0; index < count; index += 1) readItem(into);
  }
}
