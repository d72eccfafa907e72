export const title = () => "snapshots";
export function show() {}
