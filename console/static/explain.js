// Why a reader receives a message or not, as the server explains it.

export async function explanation() {
  return [];
}
